#!/usr/bin/env python3
"""The laws of the house that a machine can check. Prints each breach; exit code 1 if there is one."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 400
SOURCE = {".h", ".c", ".cc", ".cu", ".cuh", ".py"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)

# Room -> what its files must not include.
FORBIDDEN = {
    "include/": re.compile(r"^(api|common|cpu|cuda|reference)/|^hwy/|^cuda"),
    "src/common/": re.compile(r"^(api|cpu|cuda|reference)/|^hwy/"),
    "src/reference/": re.compile(r"^(api|cpu|cuda)/|^common/(mask|tile_range|layout)\.h|^hwy/"),
    "src/cuda/ptx/": re.compile(r"^(api|common|cpu|cuda/(tile|attention|kernels|config))/"),
    "src/cuda/tile/": re.compile(r"^(api|cpu|cuda/(attention|kernels|config))/"),
    "src/cuda/attention/": re.compile(r"^(api|cpu|cuda/kernels)/"),
}
PRINTS = re.compile(r"\b(?:printf|std::cout|std::cerr|exit|abort)\s*[(<]")
ASM = re.compile(r"\basm(?: volatile)?\s*\(")
MARKERS = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")


def breaches(path, text):
    if text.count("\n") > MAX_LINES:
        yield f"{text.count(chr(10))} lines, the limit is {MAX_LINES}"
    for room, pattern in FORBIDDEN.items():
        if path.startswith(room):
            for name in INCLUDE.findall(text):
                if pattern.search(name):
                    yield f"includes {name}, which this room may not"
    if MARKERS.search(text):
        yield "holds a marker of unfinished work"
    code = re.sub(r"//[^\n]*", "", text)
    if path.startswith(("src/", "include/")):
        if PRINTS.search(code):
            yield "prints or exits; the library returns a Status"
        if ASM.search(code) and not path.startswith("src/cuda/ptx/"):
            yield "asm outside src/cuda/ptx"


def main():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    found = 0
    for name in listed:
        path = ROOT / name
        if path.suffix not in SOURCE or not path.exists() or name == "tools/house_check.py":
            continue
        for breach in breaches(name, path.read_text()):
            print(f"{name}: {breach}")
            found += 1
    print(f"house check: {len(listed)} files, {found} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
