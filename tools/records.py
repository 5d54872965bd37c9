"""Recorded runs: reads them, writes those that are not the benchmark's, names their sources."""

import datetime
import hashlib
import json
import subprocess

RESULTS = "bench/results"
COMPARE = "bench/results/compare.txt"
SUPPORT = "docs/support.json"
COMPARE_ARGUMENTS = "compare --input examples/data/minilm_layer0.safetensors --backward"
OF_PYTHON = ("wheel_cpu", "h200_python")  # records of the package, in forms of their own
KERNEL_KEYS = ("name", "pass", "algorithm", "device", "dtypes", "requirement")


class Breach(Exception):
    """What a check found, in one line."""


def require(condition, message):
    if not condition:
        raise Breach(message)


# The files of each program that writes records, and the folder with kernels that it does not run.
# Where a record names none: the first.
PROGRAMS = {
    "flashwok bench": ("cli/lib/**/bench*", "src/cuda/"),
    "bench/h200_forward.py": ("bench/*.py", "src/cpu/"),
}


def sources_sha256(root, program="flashwok bench"):
    """Over src/, include/ and the program's files, as cli/lib/sha256.h says it for the first."""
    files, not_run = PROGRAMS[program]
    paths = []
    for pattern in ("include/**/*", "src/**/*", files):
        paths += [path for path in root.glob(pattern) if path.is_file()]
    digest = hashlib.sha256()
    names = {path.relative_to(root).as_posix(): path for path in paths}
    for name in sorted(names.keys(), key=str.encode):
        if not name.startswith(not_run):
            digest.update(name.encode() + b"\0" + names[name].read_bytes() + b"\0")
    return digest.hexdigest()


def read_json(root, path):
    """The JSON of a file below root, or None when there is none."""
    file = root / path
    try:
        return json.loads(file.read_text()) if file.exists() else None
    except ValueError as error:
        raise Breach(f"{path}: not JSON: {error}") from error


def read_bench(root, name):
    path = f"{RESULTS}/{name}.json"
    record = read_json(root, path)
    if record is not None:
        require(record.get("schema") == "fw-bench/1", f"{path}: its schema is not fw-bench/1")
    return record


def read_compare(root):
    """The heads of the text record and, after an empty line, what the terminal showed."""
    file = root / COMPARE
    if not file.exists():
        return None
    head, _, text = file.read_text().partition("\n\n")
    record = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    require({"date", "cpu", "sources_sha256"} <= record.keys() and text, f"{COMPARE}: incomplete")
    return record | {"text": text}


def states(root):
    """A line for each record: whether it measured the sources of this tree."""
    found = {}
    for file in sorted((root / RESULTS).glob("*.json")):
        if file.stem in OF_PYTHON:
            continue
        found[f"{RESULTS}/{file.name}"] = read_bench(root, file.stem)
    compare = read_compare(root)
    if compare is not None:
        found[COMPARE] = compare
    for path, record in found.items():
        program = record.get("program", "flashwok bench")
        require(program in PROGRAMS, f"{path}: of an unknown program, {program}")
        if record.get("sources_sha256") == sources_sha256(root, program):
            yield f"{path}: of these sources, {record.get('date')}"
        else:
            yield f"warning: {path}: of older sources, {record.get('date')}"
    if not found:
        yield f"{RESULTS}: no record yet"


def run(root, program, arguments):
    """What `program` prints, run in the root of the tree."""
    command = [str(program.resolve()), *arguments.split()]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    require(result.returncode == 0, f"{program} {arguments}: {result.stderr.strip()}")
    return result.stdout


def info(root, program):
    return json.loads(run(root, program, "info --json"))


def record_compare(root, program):
    head = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": info(root, program)["devices"][0]["cpu"],
        "sources_sha256": sources_sha256(root),
    }
    shown = f"$ flashwok {COMPARE_ARGUMENTS}\n{run(root, program, COMPARE_ARGUMENTS)}"
    lines = [f"{key}: {value}\n" for key, value in head.items()]
    (root / RESULTS).mkdir(parents=True, exist_ok=True)
    (root / COMPARE).write_text("".join(lines) + "\n" + shown)


def support(root, program):
    """What the registry of a built program takes, without what depends on the machine."""
    kernels = info(root, program)["kernels"]
    chosen = [{key: kernel[key] for key in KERNEL_KEYS} for kernel in kernels]
    return json.dumps({"schema": "fw-support/1", "kernels": chosen}, indent=2) + "\n"


def record_support(root, program):
    (root / SUPPORT).write_text(support(root, program))


def check_support(root, program):
    require(
        (root / SUPPORT).read_text() == support(root, program),
        f"{SUPPORT}: differs from the registry: make support tables",
    )
