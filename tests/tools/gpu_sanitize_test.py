"""tools/gpu_sanitize.py on a program that stands in for compute-sanitizer."""

import contextlib
import io
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import gpu_sanitize

STAND_IN = """#!/usr/bin/env python3
import os, sys, time
given = sys.argv[1:]
tool = given[given.index("--tool") + 1]
log = given[given.index("--log-file") + 1]
kernel = os.environ["FLASHWOK_KERNEL"]
assert os.environ["FLASHWOK_REPEATS"] == "2"
print("[       OK ] Cases/CudaCaseTest.MatchesOracle/a (12 ms)")
print("[  SKIPPED ] Cases/CudaCaseTest.MatchesOracle/b (0 ms)")
print("[  PASSED  ] 1 test.", flush=True)
with open(log, "w") as out:
    out.write("========= COMPUTE-SANITIZER\\n")
    if tool == "racecheck" and kernel == "v3":
        for thread in (1, 2):
            out.write(
                "========= Error: Race reported between Write access at void Kernel<int>(T)+0x%d0\\n"
                "=========     and Read access at void Kernel<int>(T)+0xa40 [16 hazards]\\n"
                "=========\\n" % thread
            )
        out.write("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)\\n")
        sys.exit(9)
    if tool == "initcheck" and kernel == "v2":
        out.write(
            "========= Uninitialized __global__ memory read of size 4 bytes\\n"
            "=========     at void Kernel<int>(T)+0xa40\\n"
            "=========     by thread (3,0,0) in block (0,0,0)\\n"
        )
        out.flush()
        time.sleep(60)
    if tool == "synccheck" and kernel == "v1":
        print("[  FAILED  ] CudaPartsTest.ARow (3 ms)")
        sys.exit(1)
    out.write("========= ERROR SUMMARY: 0 errors\\n")
"""


class Sanitize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.program = self.root / "sanitizer"
        self.program.write_text(STAND_IN)
        self.program.chmod(0o755)

    def call(self, *arguments):
        given = ["a_test", "--out", str(self.root / "out"), "--sanitizer", str(self.program)]
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = gpu_sanitize.main([*given, *arguments])
        return code, out.getvalue()

    def test_clean_kernels(self):
        code, out = self.call("--tools", "memcheck", "synccheck", "--kernels", "v3", "v2")
        self.assertEqual(code, 0)
        row = "memcheck   v3        1 passed, 0 failed, 1 skipped             0 errors  done"
        self.assertIn(row, out)
        self.assertTrue((self.root / "out/synccheck_v2.log").exists())

    def test_equal_reports_are_counted(self):
        code, out = self.call("--tools", "racecheck", "--kernels", "v3", "v2")
        self.assertEqual(code, 1)
        self.assertIn("2 errors  code 9", out)
        report = "2 x Error: Race reported between Write access at void Kernel; and Read access at"
        self.assertIn(report, out)

    def test_what_was_cut_off_is_counted(self):
        code, out = self.call("--tools", "initcheck", "--kernels", "v2", "--seconds", "2")
        self.assertEqual(code, 1)
        self.assertIn("1 errors  time is up", out)
        self.assertIn(
            "1 x Uninitialized __global__ memory read of size 4 bytes; at void Kernel", out
        )

    def test_a_failed_test_fails(self):
        code, out = self.call("--tools", "synccheck", "--kernels", "v1")
        self.assertEqual(code, 1)
        self.assertIn("1 passed, 1 failed, 1 skipped", out)

    def test_no_sanitizer(self):
        with self.assertRaises(SystemExit):
            gpu_sanitize.main(["a_test", "--out", str(self.root), "--sanitizer", "/not/there"])


if __name__ == "__main__":
    unittest.main()
