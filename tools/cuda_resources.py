#!/usr/bin/env python3
"""What the compiler made of each CUDA kernel, held against a table: registers, stack, and how many
instructions of the kinds that matter stand in its machine code.

    cuda_resources.py CUOBJDUMP FOLDER... --check TABLE  exit 1 when a kernel differs
    cuda_resources.py CUOBJDUMP FOLDER... --write TABLE  the folders hold the objects of the kernels

A V2 or V3 kernel must not use local memory, whatever the table says, and a V3 kernel multiplies by
HGMMA alone.
"""
import argparse
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

COUNTED = ("HGMMA", "HMMA", "LDL", "STL")
HEADER = "# kernel | architecture | registers | stack | " + " | ".join(COUNTED)


def run(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def short(name):
    """A demangled kernel without what all of them share."""
    name = re.sub(r"^void ", "", name)
    name = name.replace("flashwok::cuda::", "").replace("flashwok::", "")
    name = re.sub(r"\((int|bool|DType)\)", "", name)
    return re.sub(r"\(.*\)$", "", name).replace(" ", "")


def usage(cuobjdump, path):
    """{(mangled, architecture): [registers, stack]}"""
    found, architecture, function = {}, None, None
    for line in run(cuobjdump, "--dump-resource-usage", str(path)).splitlines():
        if match := re.search(r"arch = (sm_\w+)", line):
            architecture = match[1]
        elif match := re.search(r"Function (\S+):", line):
            function = match[1]
        if match := re.search(r"REG:(\d+) STACK:(\d+)", line):
            found[function, architecture] = [int(match[1]), int(match[2])]
    return found


def instructions(cuobjdump, path):
    """{(mangled, architecture): [count of each of COUNTED]}"""
    found, architecture, counts = {}, None, None
    for line in run(cuobjdump, "--dump-sass", str(path)).splitlines():
        if match := re.search(r"arch = (sm_\w+)", line):
            architecture = match[1]
        elif match := re.search(r"Function : (\S+)", line):
            counts = found.setdefault((match[1], architecture), [0] * len(COUNTED))
        elif match := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?\s*([A-Z]\w*)", line):
            if match[1] in COUNTED:
                counts[COUNTED.index(match[1])] += 1
    return found


def measure(cuobjdump, folders):
    objects = []
    for folder in folders:
        found = sorted(pathlib.Path(folder).glob("cuda/instances/*.o"))
        if not found:
            sys.exit(f"{folder}: no objects under cuda/instances")
        objects += found
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(lambda p: (usage(cuobjdump, p), instructions(cuobjdump, p)), objects))
    rows = {}
    for used, counted in parts:
        names = run("c++filt", text="\n".join(name for name, _ in used)).splitlines()
        for (key, values), name in zip(used.items(), names):
            rows[short(name), key[1]] = values + counted[key]
    return rows


def wrong(rows):
    """What no table can allow."""
    for (name, architecture), values in rows.items():
        counts = dict(zip(COUNTED, values[2:]))
        if re.match(r"ForwardV[23]", name) and (counts["LDL"] or counts["STL"]):
            yield f"{name} {architecture}: local memory"
        if name.startswith("ForwardV3<") and (not counts["HGMMA"] or counts["HMMA"]):
            yield f"{name} {architecture}: {counts['HGMMA']} HGMMA, {counts['HMMA']} HMMA"


def lines(rows):
    return [HEADER] + [" | ".join([*key, *map(str, values)]) for key, values in sorted(rows.items())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cuobjdump")
    parser.add_argument("folders", nargs="+", metavar="folder")
    parser.add_argument("--check", metavar="TABLE")
    parser.add_argument("--write", metavar="TABLE")
    arguments = parser.parse_args()
    rows = measure(arguments.cuobjdump, arguments.folders)
    now = lines(rows)
    if arguments.write:
        pathlib.Path(arguments.write).write_text("\n".join(now) + "\n", encoding="utf-8")
    faults = list(wrong(rows))
    if arguments.check:
        table = pathlib.Path(arguments.check).read_text(encoding="utf-8").splitlines()
        faults += [f"not in the table: {line}" for line in now if line not in table]
        faults += [f"no longer so: {line}" for line in table if line not in now]
    print("\n".join(faults + [f"resources: {len(rows)} kernels, {len(faults)} faults"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
