"""The README tables: from made records, in a tree of their own."""

import contextlib
import hashlib
import io
import json
import pathlib
import stat
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import counter_tables
import readme_tables
import records

MARKED = "# Title\n\n<!-- table:{} -->\n<!-- /table -->\n\nAfter.\n"
FIGURE = "of <!-- figure:keys_full -->375<!-- /figure --> keys.\n"
KERNEL = {
    "name": "cpu_forward_v3",
    "pass": "forward",
    "algorithm": "v3",
    "device": "cpu",
    "dtypes": "float32 bfloat16",
    "requirement": "",
}


def cell(algorithm, threads, gflops, **more):
    return {
        "pass": "forward",
        "algorithm": algorithm,
        "dtype": "float32",
        "head_dim": 64,
        "causal": "none",
        "seqlen_k": 4096,
        "num_heads": 8,
        "threads": threads,
        "ms": 1.0,
        "tflops": gflops * 1e-3,
    } | more


def planned(algorithm, extra_bytes, **more):
    made = cell(algorithm, 2, 0, extra_bytes=extra_bytes, seqlen_k=65536, **more)
    return {key: value for key, value in made.items() if key not in ("ms", "tflops")}


def bench_record():
    peer = {"peers": {"torch_cpu": {"ms": 1.0, "tflops": 0.04}}}
    shares = {"peak_share": 0.5, "gemm_share": 0.625}
    return {
        "schema": "fw-bench/1",
        "date": "2026-12-01",
        "device": {"name": "cpu", "cpu": "Some CPU", "cores": 2},
        "versions": {"torch": "2.0"},
        "ceilings": {
            "fma_peak_gflops": 100,
            "fma_peak_gflops_all": 200,
            "gemm_gflops": 80,
            "gemm_gflops_all": 160,
        },
        "cells": [
            cell("standard", 1, 20),
            cell("v2", 1, 40),
            cell("v3", 1, 50, **shares, **peer),
            cell("v3", 2, 100),
            planned("standard", 32 * 2**30, refused="needs 32 GiB"),
            planned("v2", 3 * 2**20),
        ],
    }


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("src/cpu", "src/cuda", "include", "cli/lib", "docs", "bench/results"):
            (self.root / name).mkdir(parents=True)
        (self.root / "src/cpu/a.cc").write_text("a")
        (self.root / "src/b.h").write_text("b")
        (self.root / "src/cuda/c.cu").write_text("c")
        (self.root / "cli/lib/bench_x.cc").write_text("x")
        (self.root / "cli/lib/run.cc").write_text("not measured")
        self.readmes("speed")

    def readmes(self, name):
        for readme in readme_tables.READMES:
            (self.root / readme).write_text(MARKED.format(name))
        (self.root / "docs/zh").mkdir(exist_ok=True)
        for document in readme_tables.DOCUMENTS.keys() - readme_tables.READMES.keys():
            (self.root / document).write_text(FIGURE)

    def save(self, record):
        (self.root / "bench/results/cpu_local.json").write_text(json.dumps(record))

    def call(self, *arguments):
        """Exit code, standard output and standard error of the script."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = readme_tables.main(self.root, [str(argument) for argument in arguments])
        return code, out.getvalue(), err.getvalue()

    def program(self, kernels, code=0):
        """A program in the place of flashwok."""
        info = {"devices": [{"cpu": "Some CPU"}], "kernels": kernels}
        path = self.root / "flashwok"
        path.write_text(
            "#!/bin/sh\n"
            f"if [ $1 = info ]; then echo '{json.dumps(info)}'; else echo the $1 table; fi\n"
            f"exit {code}\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path


class Records(TreeTest):
    def test_hash_is_over_sorted_paths_and_contents(self):
        message = b"cli/lib/bench_x.cc\0x\0src/b.h\0b\0src/cpu/a.cc\0a\0"
        self.assertEqual(records.sources_sha256(self.root), hashlib.sha256(message).hexdigest())
        message = b"src/b.h\0b\0src/cuda/c.cu\0c\0"
        found = records.sources_sha256(self.root, "bench/h200_forward.py")
        self.assertEqual(found, hashlib.sha256(message).hexdigest())

    def test_older_sources_are_a_warning(self):
        record = bench_record() | {"sources_sha256": records.sources_sha256(self.root)}
        self.save(record)
        self.call("--write")
        code, out, _ = self.call("--check")
        self.assertEqual(code, 0)
        self.assertEqual(out, "bench/results/cpu_local.json: of these sources, 2026-12-01\n")
        (self.root / "src/b.h").write_text("changed")
        code, out, _ = self.call("--check")
        self.assertEqual(code, 0)
        self.assertTrue(out.startswith("warning: bench/results/cpu_local.json: of older sources"))

    def test_a_broken_record_fails(self):
        (self.root / "bench/results/cpu_local.json").write_text("{")
        code, _, err = self.call("--check")
        self.assertEqual(code, 1)
        self.assertIn("not JSON", err)

    def test_a_record_without_a_key_fails(self):
        record = bench_record()
        del record["ceilings"]
        self.save(record)
        code, _, err = self.call("--check")
        self.assertEqual(code, 1)
        self.assertIn("'ceilings'", err)

    def test_support_follows_the_program(self):
        program = self.program([KERNEL | {"available": False}])
        self.assertEqual(self.call("--record-support", program)[0], 0)
        self.assertEqual(self.call("--check-support", program)[0], 0)
        code, _, err = self.call("--check-support", self.program([KERNEL, KERNEL]))
        self.assertEqual(code, 1)
        self.assertIn("docs/support.json", err)

    def test_a_failing_program_leaves_no_record(self):
        self.assertEqual(self.call("--record-compare", self.program([], code=1))[0], 1)
        self.assertFalse((self.root / records.COMPARE).exists())


class Tables(TreeTest):
    def test_without_a_record_a_row_says_so(self):
        for name in ("speed", "memory", "compare"):
            self.readmes(name)
            self.assertEqual(self.call("--check")[0], 1)
            self.assertEqual(self.call("--write")[0], 0)
            code, out, _ = self.call("--check")
            self.assertEqual((code, out), (0, "bench/results: no record yet\n"))
            self.assertIn("| no record yet |", (self.root / "README.md").read_text())
            self.assertIn("| 尚无记录 |", (self.root / "README.zh-CN.md").read_text())

    def test_speed(self):
        head = readme_tables.make_table(self.root, "speed", "en").splitlines()[0]
        self.save(bench_record())
        lines = readme_tables.make_table(self.root, "speed", "en").splitlines()
        self.assertEqual(lines[3], head)
        self.assertEqual(
            lines[5],
            "| forward float32 d64 full | 20 / - | - | 40 / - | 50 / 100 | 50% / - | 62% / - "
            "| 2.00 / - | 40 / - | 1.25 / - |",
        )
        self.assertIn("Some CPU, 2026-12-01, seqlen 4,096 forward, 8 heads.", lines[0])
        self.assertEqual(lines[1], "FMA peak 100 / 200, our product on tiles in cache 80 / 160.")

    def test_memory(self):
        self.save(bench_record())
        text = readme_tables.make_table(self.root, "memory", "en")
        self.assertIn("| standard | 32 GiB, refused | - |", text)
        self.assertIn("| V2 | 3 MiB | - |", text)
        self.assertIn("`needs 32 GiB`", text)
        self.assertIn("seqlen 65,536", text)

    def test_support(self):
        backward = KERNEL | {"pass": "backward", "dtypes": "float32"}
        self.call("--record-support", self.program([KERNEL, backward]))
        text = readme_tables.make_table(self.root, "support", "en")
        self.assertIn("| cpu | V3 | float32, bfloat16 | float32 |\n", text)
        other = KERNEL | {"device": "cuda", "requirement": "sm_90"}
        self.call("--record-support", self.program([KERNEL, other]))
        text = readme_tables.make_table(self.root, "support", "en")
        self.assertIn("| cuda | V3 | float32, bfloat16 | - | sm_90 |\n", text)

    def test_compare(self):
        self.assertEqual(self.call("--record-compare", self.program([]))[0], 0)
        text = readme_tables.make_table(self.root, "compare", "en")
        self.assertIn("```text\n$ flashwok compare --input ", text)
        self.assertIn("\nthe compare table\n```\n", text)
        self.assertTrue(text.startswith("Some CPU, "))

    def test_an_edited_table_fails(self):
        self.save(bench_record())
        self.call("--write")
        path = self.root / "README.md"
        path.write_text(path.read_text().replace("50 / 100", "90 / 180"))
        code, _, err = self.call("--check")
        self.assertEqual(code, 1)
        self.assertIn("README.md", err)
        self.assertTrue(path.read_text().endswith("\nAfter.\n"))

    def test_figures_follow_the_record(self):
        self.assertEqual(self.call("--write")[0], 0)
        path = self.root / "docs/hopper.md"
        self.assertEqual(path.read_text(), FIGURE)  # as it is without a record
        ceilings = {"cublas_bf16_tflops": 800.0, "copy_gbps": 4000.0}
        record = bench_record() | {"ceilings": ceilings}
        (self.root / "bench/results/h200_forward.json").write_text(json.dumps(record))
        code, _, err = self.call("--check")
        self.assertEqual(code, 1)
        self.assertIn("docs/hopper.md", err)
        self.assertEqual(self.call("--write")[0], 0)
        self.assertEqual(path.read_text(), FIGURE.replace("375", "400"))
        self.assertEqual(self.call("--check")[0], 0)
        path.write_text("of <!-- figure:keys_full -->375 keys.\n")
        self.assertIn("no end of its own", self.call("--check")[2])

    def test_markers_must_close_and_have_names(self):
        path = self.root / "README.md"
        path.write_text("<!-- table:speed -->\n\nAfter.\n")
        self.assertIn("no end of its own", self.call("--check")[2])
        path.write_text(MARKED.format("price"))
        self.assertIn("no table is called price", self.call("--check")[2])


class Repository(unittest.TestCase):
    def test_readmes_have_every_table(self):
        for readme, language in readme_tables.READMES.items():
            _, names = readme_tables.rewritten(ROOT, readme, language)
            tables = [name.split(":")[0] for name in names]  # memory:RECORD names a record
            self.assertEqual(
                sorted(tables),
                ["compare", "generations", "h200", "memory", "speed", "support", "traffic"],
            )

    def test_documents_have_every_figure(self):
        for document in readme_tables.DOCUMENTS.keys() - readme_tables.READMES.keys():
            _, names = readme_tables.rewritten(ROOT, document, readme_tables.DOCUMENTS[document])
            self.assertEqual(sorted(names), sorted(["units", *counter_tables.FIGURES]), document)

    def test_languages_have_the_same_words(self):
        keys = [set(words) for words in readme_tables.WORDS.values()]
        self.assertTrue(all(other == keys[0] for other in keys))


if __name__ == "__main__":
    unittest.main()
