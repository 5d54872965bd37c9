"""bench/h200_forward.py on a machine made of a stub clock, and the README tables of its record."""

import contextlib
import io
import json
import math
import pathlib
import shutil
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

import flashwok_ctypes as fw
import gpu_tables
import h200_forward
import h200_shapes
import readme_tables
import records

RATES = {"v3": 500, "v2": 250, "v1": 50, "standard": 25}
RATES |= {"cudnn": 400, "fa2": 200, "fa3": 450, "fa4": 480}


class StubCase:
    def __init__(self, machine, shape):
        self.machine, self.shape = machine, shape

    def run(self, name):
        return lambda: name

    def ours(self, algorithm):
        if algorithm in self.machine.refused:
            raise fw.Refused(fw.UNSUPPORTED, "head_dim: is odd")
        return self.run(algorithm), {"kernel": f"cuda_forward_{algorithm}", "extra_bytes": 4}

    def peers(self):
        return {name: self.run(name) for name in self.machine.peers}

    def errors(self, name):
        if name in self.machine.wrong:
            raise ValueError("max error 1")
        return {"max_error": 1e-3, "rmse": 1e-4}


class StubMachine:
    """Each launch takes what RATES says."""

    def __init__(self, refused=(), wrong=(), lost=(), peers=("cudnn", "fa2", "fa3")):
        self.refused, self.wrong, self.lost, self.peers = refused, wrong, lost, peers
        self.now, self.order, self.shape = 0.0, [], None

    def device(self):
        return {"name": "Stub H200", "sm": 132}

    def versions(self):
        return {"flashwok": "0.1.0", "torch": "2.11"}

    def case(self, shape):
        self.shape = shape
        return StubCase(self, shape)

    def sync(self):
        if self.shape.seqlen in self.lost:
            raise RuntimeError("an illegal memory access")

    def time(self, run):
        self.now += 1.0
        self.order.append(run())
        return self.shape.flops() / RATES[run()] / 1e9

    def ceilings(self):
        return {"cublas_bf16_tflops": 799.0, "copy_gbps": 4246.0}

    def sustain(self, run, seconds):
        return {"launches": 3, "ms": self.time(run), "clock_mhz": 1700.0, "power_w": 699.0}


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "bench/results").mkdir(parents=True)
        self.path = self.root / "bench/results/h200_forward.json"

    def run_bench(self, machine, *arguments):
        """Exit code, the record and what was printed."""
        given = ["--library", "x.so", "--output", str(self.path), *arguments]
        options = h200_forward.parse(given)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            record = h200_forward.Record(
                options.output, h200_forward.head_of(machine, options), options.add
            )
            code = h200_forward.execute(machine, record, options, clock=lambda: machine.now)
        return code, json.loads(self.path.read_text()), out.getvalue()

    def test_a_whole_run(self):
        code, record, out = self.run_bench(StubMachine(), "--seconds", "1e9")
        self.assertEqual(code, 0)
        self.assertEqual(record["sources_sha256"], records.sources_sha256(ROOT, record["program"]))
        cells = record["cells"]
        grid = [cell for cell in cells if cell["case"] == "grid"]
        self.assertEqual(len(grid), 6 * (6 * 2 + 4 * 2))
        self.assertEqual(len(cells) - len(grid), 2 * 5)
        for cell in grid:
            self.assertEqual(cell["batch"] * cell["seqlen_q"], 16384)
            self.assertEqual(cell["num_heads"] * cell["head_dim"], 2048)
            self.assertAlmostEqual(cell["tflops"], RATES[cell["algorithm"]])
            self.assertAlmostEqual(cell["peers"]["fa3"]["tflops"], 450)
            self.assertEqual(cell["repeats"], 3)
        self.assertEqual(len(record["sustained"]), 6)
        self.assertIn("d64 full 512: v3 500 v2 250 v1 50 standard 25 | fa3 450 | 1.11", out)

    def test_every_round_has_its_own_order(self):
        machine = StubMachine()
        part = ("--dims", "64", "--masks", "full", "--seqs", "512", "--extras", "none")
        self.run_bench(machine, *part, "--only", "v3,v2", "--sustained", "0")
        rounds = [tuple(machine.order[n : n + 5]) for n in (0, 5, 10)]
        self.assertEqual(len(machine.order), 15)
        for order in rounds:
            self.assertEqual(sorted(order), ["cudnn", "fa2", "fa3", "v2", "v3"])
        self.assertEqual(len(set(rounds)), 3)

    def test_the_time_ends_a_run_and_add_goes_on(self):
        part = ("--dims", "64", "--only", "v3", "--sustained", "0", "--extras", "none")
        _, record, out = self.run_bench(StubMachine(), *part, "--seconds", "40")
        count = len(record["cells"])
        self.assertTrue(0 < count < 12)
        self.assertIn("time is up", out)
        _, record, _ = self.run_bench(StubMachine(), *part, "--seqs", "512", "--add")
        self.assertEqual(len(record["cells"]), count + 2)
        with self.assertRaises(SystemExit):
            other = StubMachine()
            other.device = lambda: {"name": "another"}
            self.run_bench(other, *part, "--add")

    def test_refused_and_wrong_kernels_are_not_timed(self):
        machine = StubMachine(refused=("v1",), wrong=("v2", "fa2"))
        part = ("--dims", "64", "--masks", "full", "--seqs", "512", "--extras", "none")
        code, record, out = self.run_bench(machine, *part)
        self.assertEqual(code, 1)
        cells = {cell["algorithm"]: cell for cell in record["cells"]}
        self.assertEqual(cells["v1"]["refused"], "head_dim: is odd")
        self.assertNotIn("ms", cells["v2"])
        self.assertIn("v2 FAILED: max error 1", out)
        self.assertNotIn("ms", cells["v3"]["peers"]["fa2"])
        self.assertIn("ms", cells["standard"])

    def test_a_lost_device_ends_it_with_the_cells_before(self):
        part = ("--dims", "64", "--masks", "full", "--extras", "none")
        with self.assertRaisesRegex(RuntimeError, "illegal memory access"):
            self.run_bench(StubMachine(lost=(4096,)), *part)
        seqlens = {cell["seqlen_q"] for cell in json.loads(self.path.read_text())["cells"]}
        self.assertEqual(seqlens, {16384, 8192})

    def test_tables(self):
        for language in gpu_tables.WORDS:
            for name in gpu_tables.BLOCKS:
                self.assertEqual(readme_tables.make_table(self.root, name, language), "")
        self.run_bench(StubMachine(), "--seconds", "1e9")
        text = readme_tables.make_table(self.root, "h200", "en")
        self.assertIn("Ours and the peers (cuDNN, FA2, FA3) in turn", text)
        self.assertIn("| TFLOPS | 512 | 1,024 | 2,048 | 4,096 | 8,192 | 16,384 |", text)
        self.assertIn("| d64 causal V3 | 500 | 500 | 500 | 500 | 500 | 500 |", text)
        self.assertIn("| d256 full best peer | 450 FA3 |", text)
        self.assertIn("| d256 full V3 : best peer | 1.11 |", text)
        self.assertIn("| window (128, 0), 8,192 keys, d64 | 500 | 250 | 450 FA3 | 1.11 |", text)
        self.assertIn("V3 d64 500 TFLOPS at 1700 MHz and 699 W, FA3 d64 450 TFLOPS", text)
        text = readme_tables.make_table(self.root, "generations", "en")
        row = "| d128 causal 4,096 | 25 | 50 | 250 | 500 | 2.00 | 5.00 | 2.00 |"
        self.assertIn(row, text)
        self.assertIn("标准", readme_tables.make_table(self.root, "generations", "zh"))

    def test_another_peer_is_named_and_compared(self):
        part = ("--dims", "64", "--seqs", "512", "--sustained", "0")
        _, record, _ = self.run_bench(StubMachine(peers=("cudnn", "fa2", "fa3", "fa4")), *part)
        for cell in record["cells"]:
            self.assertAlmostEqual(cell["peers"]["fa4"]["tflops"], 480)
        text = readme_tables.make_table(self.root, "h200", "en")
        self.assertIn("the peers (cuDNN, FA2, FA3, FA4) in turn", text)
        self.assertIn("| d64 full best peer | 480 FA4 |", text)
        self.assertIn("| 500 | 250 | 480 FA4 | 1.04 |", text)

    def test_the_record_becomes_older_with_its_program(self):
        self.run_bench(StubMachine(), "--dims", "64", "--seqs", "512", "--extras", "none")
        for folder in ("src", "include", "bench"):
            for path in (ROOT / folder).rglob("*"):
                if path.is_file() and "results" not in path.parts:
                    copy = self.root / path.relative_to(ROOT)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, copy)
        self.assertIn("of these sources", next(records.states(self.root)))
        (self.root / "bench/h200_shapes.py").write_text("changed")
        self.assertIn("of older sources", next(records.states(self.root)))


class Shapes(unittest.TestCase):
    def test_useful_work(self):
        plain = h200_shapes.Shape(2, 100, 4, 4, 64)
        self.assertEqual(plain.flops(), 4 * 2 * 100 * 100 * 4 * 64)
        causal = h200_shapes.Shape(2, 100, 4, 4, 64, causal=True)
        self.assertEqual(causal.flops() * 2, plain.flops())
        window = h200_shapes.Shape(2, 8192, 32, 32, 64, window=(128, 0))
        self.assertEqual(window.pairs(), 2 * (8192 * 129 - 128 * 129 // 2))
        varlen = h200_shapes.Shape(2, 30, 1, 1, 8, lengths=(10, 30))
        self.assertEqual(varlen.pairs(), 100 + 900)
        self.assertEqual(varlen.floor_bytes(), 40 * (4 * 8 * 2 + 4))

    def test_times_are_those_of_the_rounds(self):
        found = h200_forward.timed(h200_shapes.Shape(1, 1000, 1, 1, 1), [4.0, 1.0, 2.0])
        self.assertEqual((found["ms"], found["ms_min"], found["ms_max"]), (2.0, 1.0, 4.0))
        self.assertTrue(math.isclose(found["tflops"], 4e6 / 2e-3 / 1e12))


if __name__ == "__main__":
    unittest.main()
