#!/usr/bin/env python3
"""Runs the GPU tests under compute-sanitizer, each tool on each kernel, and prints a table last.

  tools/gpu_sanitize.py build/cuda/tests/cuda/cuda_kernels_test --out DIR
  ... --tools racecheck --kernels v3 --filter 'CudaPartsTest.*' --seconds 120

DIR gets a log of each run. A run that is not done in time counts what it did till then. Nothing is
left out of the reports; equal ones, of the same places in the code, are counted together. Exit code
1 if a tool reported something, a test failed, or a run did not test anything.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
KERNELS = ("v3", "v2", "v1", "standard")
FILTER = "Cases/CudaCaseTest.*:CudaPartsTest.*"
REPORTS_SHOWN = 3
LOCATIONS = (
    "/usr/local/cuda*/bin/compute-sanitizer",
    "/usr/local/cuda*/compute-sanitizer/compute-sanitizer",
    "/opt/nvidia/compute-sanitizer/*/compute-sanitizer",
)
PREFIX = re.compile(r"^=+ ?")
SUMMARY = re.compile(r"(\w+) SUMMARY: (\d+) (?:errors?|hazards?)")
NOT_A_REPORT = re.compile(
    r"COMPUTE-SANITIZER|SUMMARY|^\s|^$|Saved host backtrace|Target application"
)
PLACE = re.compile(r"^\s+(?:at|and|by|Write Thread|Read Thread)\b.*")


@dataclasses.dataclass
class Run:
    tool: str
    kernel: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    in_time: bool = True
    code: int = 0
    errors: int = 0
    reports: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def good(self):
        return self.errors == 0 and self.failed == 0 and self.passed > 0 and self.ended_well()

    def ended_well(self):
        return not self.in_time or self.code == 0

    def row(self):
        tests = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        end = (
            "time is up" if not self.in_time else "done" if self.code == 0 else f"code {self.code}"
        )
        return f"{self.tool:10} {self.kernel:9} {tests:36} {self.errors:6} errors  {end}"


def without_places(text):
    """A report without what differs from thread to thread: addresses, offsets, arguments."""
    text = re.sub(r"<.*>|\(.*\)", "", text)
    text = re.sub(r"\+?0x[0-9a-f]+", "", text)
    return re.sub(r"\s+", " ", text).strip()


def reports_of(log):
    """Each report, with the places that it names, and how often it stands there."""
    found, report = collections.Counter(), None

    def end():
        if report:
            found["; ".join(report)] += 1

    for line in log.splitlines():
        if not line.startswith("="):
            continue
        text = PREFIX.sub("", line, count=1)
        if PLACE.match(text):
            if report and len(report) < 4 and not text.strip().startswith("by thread"):
                report.append(without_places(text))
        elif not NOT_A_REPORT.search(text):
            end()
            report = [without_places(text)]
    end()
    return found


def errors_of(log):
    """By the tool's own count; without one, where it was cut off, the reports."""
    counts = [int(match[2]) for match in SUMMARY.finditer(log)]
    return counts[-1] if counts else sum(reports_of(log).values())


def tests_of(output):
    """(passed, failed, skipped) of googletest's lines, a test at a time."""

    def count(word):
        return len(re.findall(rf"^\[ *{word} *\] .*\(\d+ ms\)$", output, re.MULTILINE))

    return count("OK"), count("FAILED"), count("SKIPPED")


def sanitizer(given):
    path = shutil.which(given or "compute-sanitizer")
    found = [path] if path else []
    for pattern in () if given else LOCATIONS:
        found += sorted(map(str, pathlib.Path("/").glob(pattern[1:])), reverse=True)
    if not found:
        raise SystemExit(f"{given or 'compute-sanitizer'}: is not there")
    return found[0]


def execute(program, tool, kernel, options):
    """One tool on the tests of one kernel."""
    run = Run(tool, kernel)
    stem = options.out / f"{tool}_{kernel}"
    log, output = stem.with_suffix(".log"), stem.with_suffix(".txt")
    log.unlink(missing_ok=True)
    command = [program, "--tool", tool, "--error-exitcode", "9", "--print-limit", "1000"]
    command += ["--log-file", str(log), str(options.test), f"--gtest_filter={options.filter}"]
    variables = {"FLASHWOK_REPEATS": "2"} | os.environ | {"FLASHWOK_KERNEL": kernel}
    with output.open("w") as out:
        child = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
        try:
            run.code = child.wait(options.seconds)
        except subprocess.TimeoutExpired:
            run.in_time = False
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    run.passed, run.failed, run.skipped = tests_of(output.read_text(errors="replace"))
    text = log.read_text(errors="replace") if log.exists() else ""
    run.errors, run.reports = errors_of(text), reports_of(text)
    return run


def table(runs):
    lines = []
    for run in runs:
        lines.append(run.row())
        for report, count in run.reports.most_common(REPORTS_SHOWN):
            lines.append(f"    {count} x {report[:300]}")
    return "\n".join(lines)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("test", type=pathlib.Path, help="cuda_kernels_test")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS), help="text of their names")
    parser.add_argument("--filter", default=FILTER, help="as --gtest_filter")
    parser.add_argument("--seconds", type=float, default=30.0, help="of a run at most")
    parser.add_argument("--sanitizer", help="the program, where it is not on the path")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse(arguments)
    program = sanitizer(options.sanitizer)
    options.out.mkdir(parents=True, exist_ok=True)
    runs = []
    for tool in options.tools:
        for kernel in options.kernels:
            runs.append(execute(program, tool, kernel, options))
            print(runs[-1].row(), flush=True)
    print("\n" + table(runs))
    return 0 if all(run.good() for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
