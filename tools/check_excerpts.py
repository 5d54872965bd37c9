#!/usr/bin/env python3
"""Every line of code that a lesson quotes must stand in the sources, up to white space."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUFFIXES = (".h", ".cc", ".cuh", ".cu")
LESSONS = [
    f"docs/{folder}{name}.md"
    for name in ("forward", "backward", "hopper")
    for folder in ("", "zh/")
]


def squeeze(line):
    return re.sub(r"\s+", " ", line.strip())


def quoted(text):
    """Pairs of line number and code, from ``` blocks marked cpp or diff."""
    language = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            language = None if language is not None else line[3:].strip()
        elif language in ("cpp", "diff"):
            yield number, squeeze(line[1:] if language == "diff" else line)


def main():
    sources = [path for path in (ROOT / "src").rglob("*") if path.suffix in SUFFIXES]
    known = {squeeze(line) for path in sources for line in path.read_text().splitlines()}
    missing = [
        f"{name}:{number}: not in src/: {code}"
        for name in LESSONS
        for number, code in quoted((ROOT / name).read_text())
        if code not in known and code not in ("", "...")
    ]
    print("\n".join([*missing, f"lessons: {len(missing)} quoted lines that are not in src/"]))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
