"""bench/h200_traffic.py under a program that stands in for ncu, on a machine that is made up."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

import counter_tables
import h200_forward
import h200_traffic
import ncu
import readme_tables

# Kernels of a launch, and what each of them is said to have done by metric.
KERNELS = {"standard": ("gemm", "softmax", "gemm"), "v2": ("v2", "merge"), "fa3": ("fill", "fa3")}
STAND_IN = """#!/usr/bin/env python3
import sys
sys.path[:0] = [{bench!r}, {tests!r}]
import h200_traffic_test
sys.exit(h200_traffic_test.stand_in(sys.argv[1:], {lacks!r}, {refuses!r}))
"""


class StubCase:
    def __init__(self, machine, shape):
        self.machine, self.shape = machine, shape

    def run(self, name):
        return lambda: name

    def ours(self, name):
        read, written = self.shape.floor()
        facts = {"kernel": f"cuda_forward_{name}", "extra_bytes": 0, "tile_q": 128, "tile_kv": 64}
        return self.run(name), facts | {"model_read": 10 * read, "model_written": written}

    def peers(self):
        return {name: self.run(name) for name in ("cudnn", "fa3")}

    def errors(self, name):
        if name in self.machine.wrong:
            raise ValueError(f"max error 1 of {name}")
        return {"max_error": 1e-3}


class StubMachine:
    def __init__(self, wrong=()):
        self.wrong, self.profiled = wrong, []

    def device(self):
        return {"name": "Stub H200"}

    def versions(self):
        return {"flashwok": "0.1.0"}

    def case(self, shape):
        return StubCase(self, shape)

    def sync(self):
        pass

    def profile(self, run):
        self.profiled.append(run())


VALUES = {
    "gpu__time_duration.sum": ("ns", lambda kernel: 10 if kernel in ("fill", "merge") else 2000000),
    "dram__bytes_read.sum": ("byte", lambda kernel: 1000000),
    "dram__bytes_write.sum": ("Kbyte", lambda kernel: 500),
    "l1tex__m_xbar2l1tex_read_bytes.sum": ("byte", lambda kernel: 0),
    "lts__t_sectors_srcunit_tex_op_read.sum": ("sector", lambda kernel: 100000),
    "sm__cycles_elapsed.avg.per_second": ("cycle/nsecond", lambda kernel: 1.7),
}


def csv_of(names, metrics):
    """As ncu prints it; the text "1,000" for a thousand."""
    found = [metric for metric in metrics if metric in VALUES or "pct" in metric]
    rows = [["ID", "Kernel Name", *found]]
    rows.append(["", "", *(VALUES[m][0] if m in VALUES else "%" for m in found)])
    for number, name in enumerate(names):
        values = [VALUES[m][1](name) if m in VALUES else 42.5 for m in found]
        rows.append([str(number), name, *(f"{value:,}" for value in values)])
    lines = [",".join(f'"{text}"' for text in row) for row in rows]
    return "==PROF== Connected to process 7\n" + "\n".join(lines) + "\n"


def stand_in(given, lacks, refuses):
    if given == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1)")
        return 0
    every = [*h200_traffic.TRAFFIC_METRICS.values(), *h200_traffic.UNIT_METRICS.values()]
    bases = {metric.split(".")[0] for metrics in every for metric in metrics}
    if given == ["--query-metrics"]:
        print("Device NVIDIA H200 (GH100)\n---- ----")
        print("\n".join(f"{base}   Counter  byte  # of them" for base in bases - set(lacks)))
        return 0

    def of(option):
        return given[given.index(option) + 1]

    metrics = of("--metrics").split(",")
    log = pathlib.Path(of("--log-file"))
    if bad := [metric for metric in metrics if metric.split(".")[0] in refuses]:
        log.write_text(f"==ERROR== Failed to find metric {bad[0]}\n")
        return 1
    machine = StubMachine(wrong=("v1",) if of("--output").endswith("wrong") else ())
    facts = h200_traffic.launch(machine, h200_traffic.JOBS[of("--launch")]())
    pathlib.Path(of("--output")).write_text(json.dumps(facts))
    names = []
    for name in machine.profiled:
        names += ["at::cuda::<unnamed>::spin_kernel(long)", *KERNELS.get(name, (name,))]
    log.write_text(csv_of(names, metrics))
    return 0


class Traffic(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bench/results").mkdir(parents=True)
        self.path = self.root / "bench/results/h200_forward.json"
        head = h200_forward.head_of(StubMachine(), types.SimpleNamespace(nvcc=None, rounds=3))
        head |= {"ceilings": {"cublas_bf16_tflops": 800.0, "copy_gbps": 4000.0}, "cells": []}
        self.path.write_text(json.dumps(head))

    def ncu(self, lacks=(), refuses=()):
        program = self.root / "ncu"
        tests = str(pathlib.Path(__file__).resolve().parent)
        program.write_text(
            STAND_IN.format(bench=str(ROOT / "bench"), tests=tests, lacks=lacks, refuses=refuses)
        )
        program.chmod(0o755)
        return str(program)

    def count(self, program, *arguments):
        """The record and what was printed."""
        given = ["--library", "x.so", "--output", str(self.path), "--ncu", program, *arguments]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = h200_traffic.execute(StubMachine(), h200_traffic.parse(given))
        self.assertEqual(code, 0)
        return json.loads(self.path.read_text()), out.getvalue()

    def test_the_kernels_of_a_launch_are_added_up(self):
        record, out = self.count(self.ncu())
        cells = {
            (cell["name"], cell["head_dim"], cell["seqlen_q"]): cell
            for cell in record["traffic"]["cells"]
        }
        self.assertEqual(len(cells), 4 * 2 * 2)
        standard = cells["standard", 64, 16384]
        self.assertEqual(standard["kernels"], ["gemm", "softmax", "gemm"])
        self.assertEqual(standard["dram_read"], 3e6)
        self.assertEqual(standard["dram_written"], 1.5e6)
        self.assertEqual(standard["l2_read"], 3 * 3.2e6)  # the first of its metrics says 0
        self.assertEqual(cells["v2", 128, 4096]["dram_read"], 2e6)
        self.assertEqual(cells["v3", 128, 4096]["dram_read"], 1e6)
        self.assertEqual(cells["v3", 128, 4096]["floor_read"], 3 * 16384 * 2048 * 2)
        self.assertEqual(record["traffic"]["metrics"]["l2_read"].split("_")[0], "lts")
        self.assertEqual(record["traffic"]["without"], ["l2_written"])
        self.assertIn("d64 full 4096 standard: ", out)

    def test_units_are_of_the_longest_kernel(self):
        record, _ = self.count(self.ncu(), "--parts", "units")
        self.assertNotIn("traffic", record)
        cells = record["units"]["cells"]
        self.assertEqual([cell["name"] for cell in cells], ["v3", "fa3"] * 6)
        self.assertEqual({cell["causal"] for cell in cells}, {"none", "bottom_right"})
        self.assertEqual(cells[1]["kernels"], ["fa3"])
        self.assertEqual(cells[1]["clock_mhz"], 1700.0)
        self.assertEqual(cells[1]["tensor"], 42.5)
        self.assertEqual(cells[1]["ms"], 2.0)

    def test_unknown_metrics_are_left_out_and_said(self):
        tensor = [name.split(".")[0] for name in h200_traffic.UNIT_METRICS["tensor"]]
        program = self.ncu(lacks=tensor[:1] + ["sm__inst_executed_pipe_xu"], refuses=tensor[1:2])
        record, out = self.count(program, "--parts", "units")
        self.assertIn("ncu knows no metric for xu", out)
        self.assertIn(f"ncu does not take {tensor[1]}", out)
        units = record["units"]
        self.assertEqual(units["metrics"]["tensor"].split(".")[0], tensor[2])
        self.assertEqual(units["without"], ["xu"])
        self.assertEqual(len(units["not_taken"]), 1)

    def test_other_sources_or_devices_are_refused(self):
        record = json.loads(self.path.read_text())
        self.path.write_text(json.dumps(record | {"device": {"name": "another"}}))
        with self.assertRaisesRegex(SystemExit, r"another device \(device\)"):
            self.count(self.ncu())
        self.path.unlink()
        with self.assertRaisesRegex(SystemExit, "no record"):
            self.count(self.ncu())

    def test_a_wrong_kernel_is_not_counted(self):
        with self.assertRaisesRegex(ValueError, "max error 1 of v1"):
            with contextlib.redirect_stdout(io.StringIO()):
                h200_traffic.launch(StubMachine(wrong=("v1",)), h200_traffic.traffic_jobs())

    def test_a_failing_ncu_says_so(self):
        program = self.root / "ncu"
        program.write_text("#!/bin/sh\n[ $1 = --version ] && exit 0\nexit 3\n")
        program.chmod(0o755)
        with self.assertRaisesRegex(ncu.Failed, "exit code 3, 0 launches"):
            self.count(str(program))

    def test_a_later_cell_keeps_the_counts(self):
        self.count(self.ncu())
        head = h200_forward.head_of(StubMachine(), types.SimpleNamespace(nvcc=None, rounds=3))
        again = h200_forward.Record(self.path, head, True)
        self.assertEqual(len(again.document["traffic"]["cells"]), 16)

    def test_tables(self):
        for language in counter_tables.WORDS:
            for name in counter_tables.BLOCKS:
                self.assertEqual(readme_tables.make_table(self.root, name, language), "")
        self.count(self.ncu())
        text = readme_tables.make_table(self.root, "traffic", "en")
        self.assertIn("by `ncu` 2025.3.1.0, in MB", text)
        self.assertIn("| d64 full 4,096 standard | 3 | 2 | - | 2,082 | 271 | 0.02 |", text)
        self.assertNotIn("the formula's within", text)  # nothing was counted of what is written
        record = json.loads(self.path.read_text())
        for cell in record["traffic"]["cells"]:
            off = {"standard": 2.0, "v2": 0.97}.get(cell["name"], 1.0)
            cell["l2_read"], cell["l2_written"] = off * cell["model_read"], off * cell["model_written"]
        self.path.write_text(json.dumps(record))
        text = readme_tables.make_table(self.root, "traffic", "en")
        self.assertIn("is the formula's within 3.0%", text)
        text = readme_tables.make_table(self.root, "units", "en")
        self.assertIn("| of the peak | products | exp, convert | FMA |", text)
        self.assertIn("| d256 causal 4,096 FA3 | 42% | 42% | 42% |", text)
        self.assertIn("| 1700 |", text)
        self.assertIn("无掩码", readme_tables.make_table(self.root, "units", "zh"))

    def test_figures(self):
        want = {"flops_a_byte": "200", "keys_full": "400", "keys_causal": "800"}
        for name, text in (want | {"cublas_tflops": "800", "copy_gbps": "4,000"}).items():
            self.assertEqual(counter_tables.figure(self.root, name), text)
        with self.assertRaisesRegex(Exception, "no figure is called price"):
            counter_tables.figure(self.root, "price")

    def test_words(self):
        keys = [set(words) for words in counter_tables.WORDS.values()]
        self.assertEqual(keys[0], keys[1])


if __name__ == "__main__":
    unittest.main()
