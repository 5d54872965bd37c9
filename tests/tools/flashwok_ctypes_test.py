"""bench/flashwok_ctypes.py against the C header, and against a library where one is given.

flashwok_ctypes_test.py [--library libflashwok.so] [--compiler cc]
"""

import argparse
import ctypes
import math
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest
from operator import mul

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

import flashwok_ctypes as fw

GIVEN = argparse.Namespace(library=None, compiler="cc")


def layout_program():
    lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <flashwok/c_api.h>"]
    lines += ["int main(void) {"]
    for name, struct in fw.STRUCTS.items():
        lines.append(f'  printf("{name} %zu\\n", sizeof({name}));')
        for field in struct._fields_:
            place = f"{name}.{field[0]}"
            lines.append(f'  printf("{place} %zu\\n", offsetof({name}, {field[0]}));')
    return "\n".join([*lines, "  return 0;", "}"]) + "\n"


class Header(unittest.TestCase):
    def test_structs_lie_as_in_c(self):
        compiler = shutil.which(GIVEN.compiler)
        if compiler is None:
            self.skipTest(f"no {GIVEN.compiler}")
        with tempfile.TemporaryDirectory() as folder:
            source, program = pathlib.Path(folder) / "layout.c", pathlib.Path(folder) / "layout"
            source.write_text(layout_program())
            include = f"-I{ROOT / 'include'}"
            subprocess.run([compiler, include, str(source), "-o", str(program)], check=True)
            printed = subprocess.run([str(program)], check=True, capture_output=True, text=True)
        in_c = dict(line.split() for line in printed.stdout.splitlines())
        for name, struct in fw.STRUCTS.items():
            self.assertEqual(ctypes.sizeof(struct), int(in_c[name]), name)
            for field in struct._fields_:
                place = f"{name}.{field[0]}"
                self.assertEqual(getattr(struct, field[0]).offset, int(in_c[place]), place)


class Calls(unittest.TestCase):
    BATCH, SEQLEN, HEADS, DIM = 2, 5, 2, 8
    SHAPE = (BATCH, SEQLEN, HEADS, DIM)

    def setUp(self):
        if GIVEN.library is None:
            self.skipTest("no shared library of this build")
        self.library = fw.Library(GIVEN.library)
        draw = random.Random(1)
        count = math.prod(self.SHAPE)
        self.q, self.k, self.v = (
            (ctypes.c_float * count)(*(draw.gauss(0, 1) for _ in range(count))) for _ in range(3)
        )
        self.o = (ctypes.c_float * count)(*[math.nan] * count)

    def view(self, memory, shape=SHAPE, **more):
        return fw.tensor(ctypes.addressof(memory), "float32", shape, **more)

    def problem(self, **more):
        return self.library.problem(
            q=self.view(self.q), k=self.view(self.k), v=self.view(self.v), **more
        )

    def at(self, memory, b, i, h):
        start = ((b * self.SEQLEN + i) * self.HEADS + h) * self.DIM
        return memory[start : start + self.DIM]

    def want(self, b, i, h, keys):
        q = self.at(self.q, b, i, h)
        scores = []
        for j in keys:
            k = self.at(self.k, b, j, h)
            scores.append(sum(x * y for x, y in zip(q, k, strict=True)) / math.sqrt(self.DIM))
        weights = [math.exp(score) for score in scores]
        rows = [self.at(self.v, b, j, h) for j in keys]
        return [sum(map(mul, weights, column)) / sum(weights) for column in zip(*rows, strict=True)]

    def check(self, keys_of):
        for b in range(self.BATCH):
            for i in range(self.SEQLEN):
                for h in range(self.HEADS):
                    got, want = self.at(self.o, b, i, h), self.want(b, i, h, keys_of(i))
                    for x, y in zip(got, want, strict=True):
                        self.assertAlmostEqual(x, y, delta=2e-6)

    def run_forward(self, problem):
        self.library.forward(problem, self.library.execution(), o=self.view(self.o))()

    def test_full_causal_and_window(self):
        keys = {
            "full": lambda i: range(self.SEQLEN),
            "causal": lambda i: range(i + 1),
            "window": lambda i: range(max(0, i - 1), i + 1),
        }
        self.run_forward(self.problem())
        self.check(keys["full"])
        self.run_forward(self.problem(causal=fw.BOTTOM_RIGHT))
        self.check(keys["causal"])
        self.run_forward(self.problem(window_left=1, window_right=0))
        self.check(keys["window"])

    def test_plan_names_the_kernel(self):
        problem = self.problem(algorithm=fw.ALGORITHMS.index("standard"))
        plan = self.library.plan(problem, self.library.execution())
        self.assertEqual(plan.kernel, b"cpu_forward_standard")
        self.assertGreater(plan.workspace_bytes, 0)

    def test_bytes_by_the_formula(self):
        problem = self.problem(algorithm=fw.ALGORITHMS.index("v3"))
        execution = self.library.execution()
        outputs = {"o": self.view(self.o)}
        read, written = self.library.forward_bytes(problem, execution, **outputs)
        self.assertEqual((read, written), (3 * 4 * len(self.q), 4 * len(self.o)))
        with self.assertRaisesRegex(fw.Refused, "window_left: is -5"):
            self.library.forward_bytes(self.problem(window_left=-5), execution, **outputs)

    def test_a_refusal_raises(self):
        problem = self.problem(window_left=-5)
        with self.assertRaisesRegex(fw.Refused, "window_left: is -5"):
            self.run_forward(problem)

    def test_an_unknown_field_is_an_error(self):
        with self.assertRaisesRegex(TypeError, "no windows"):
            self.problem(windows=3)

    def test_version(self):
        self.assertRegex(self.library.version(), r"^\d+\.\d+\.\d+$")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path)
    parser.add_argument("--compiler", default="cc")
    GIVEN, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
