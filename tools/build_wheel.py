#!/usr/bin/env python3
"""Builds the wheel, makes it stand alone, and tries it where there is no compiler.

build_wheel.py [--ccache] [--record FILE]

Into build/wheel. What it links beyond the C library is copied into it, by auditwheel, and the
libraries that auditwheel leaves to the system but that a bare one has not: those of X, which cairo
is linked to. Then it is installed into a fresh virtual environment and run there.
"""

import argparse
import json
import os
import pathlib
import platform
import resource
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "wheel"
LARGEST = 60 * 2**20
# What every Linux has that a wheel of this kind may be installed on.
SYSTEM = ("libc.", "libm.", "libdl.", "librt.", "libpthread.", "ld-linux", "libstdc++.", "libgcc_s.")
TRIAL = """
import flashwok, numpy
q = numpy.random.default_rng(0).standard_normal((1, 100, 2, 32), dtype=numpy.float32)
results = [flashwok.attention(q, q, q, algorithm=a) for a in ("standard", "v1", "v2", "v3")]
assert max(abs(o - results[0]).max() for o in results) < 1e-5
print(flashwok.__file__)
print([line.split()[-1] for line in open("/proc/self/maps") if "libhwy" in line][0])
"""


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, cwd=ROOT, **options)


def output(*command, **options):
    return run(*command, stdout=subprocess.PIPE, **options).stdout


def build(ccache):
    """The wheel as scikit-build-core makes it, from nothing; the seconds that took."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    options = ["-C", f"build-dir={FOLDER / 'cmake'}"]
    if ccache:
        options += ["-C", "cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache"]
        options += ["-C", "cmake.define.CMAKE_CUDA_COMPILER_LAUNCHER=ccache"]
    start = time.monotonic()
    run(sys.executable, "-m", "pip", "wheel", ".", "--no-build-isolation", "--no-deps", "-w",
        str(FOLDER / "raw"), *options)  # fmt: skip
    return next((FOLDER / "raw").glob("*.whl")), time.monotonic() - start


def repair(raw):
    """The same with the libraries that it needs."""
    tools = str(pathlib.Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    environment = os.environ | {"PATH": tools}
    run(sys.executable, "-m", "auditwheel", "repair", str(raw), "-w", str(FOLDER / "repaired"),
        env=environment)  # fmt: skip
    wheel = next((FOLDER / "repaired").glob("*.whl"))
    run(sys.executable, "-m", "wheel", "unpack", str(wheel), "-d", str(FOLDER / "open"))
    tree = next((FOLDER / "open").iterdir())
    bundled = tree / "flashwok.libs"
    known = ldconfig()
    waiting = [*bundled.iterdir(), tree / "flashwok" / "bin" / "flashwok"]
    while waiting:
        for name in output("patchelf", "--print-needed", str(waiting.pop()), env=environment).split():
            if name.startswith(SYSTEM) or (bundled / name).exists():
                continue
            copy = pathlib.Path(shutil.copy(known[name], bundled / name))
            run("patchelf", "--set-rpath", "$ORIGIN", str(copy), env=environment)
            waiting.append(copy)
    run(sys.executable, "-m", "wheel", "pack", str(tree), "-d", str(FOLDER))
    return next(FOLDER.glob("*.whl"))


def ldconfig():
    """Where the system's libraries lie, by their names."""
    lines = output("/sbin/ldconfig", "-p").splitlines()
    return {line.split()[0]: line.split()[-1] for line in reversed(lines) if "=>" in line}


def try_out(wheel):
    """Installs and runs it in an environment of its own, with nothing else on the path."""
    venv = FOLDER / "venv"
    run(sys.executable, "-m", "venv", "--clear", str(venv))
    bare = {"PATH": str(venv / "bin")} | {
        name: value for name, value in os.environ.items() if name.startswith("PIP_")
    }
    assert not any(shutil.which(name, path=bare["PATH"]) for name in ("cc", "c++", "cmake"))
    python = str(venv / "bin" / "python")
    run(python, "-m", "pip", "install", "-q", str(wheel), env=bare)
    for path in output(python, "-c", TRIAL, env=bare).splitlines():
        assert path.startswith(str(venv)), f"{path} is not of the wheel"
    info = json.loads(output(str(venv / "bin" / "flashwok"), "info", "--json", env=bare))
    linked = output("/usr/bin/ldd", next(str(p) for p in venv.rglob("bin/flashwok") if binary(p)))
    for line in linked.splitlines():
        name, _, place = line.strip().partition(" => ")
        assert not place or name.startswith(SYSTEM) or place.startswith(str(venv)), line
    return info


def binary(path):
    return path.read_bytes()[:4] == b"\x7fELF"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ccache", action="store_true", help="a quick rebuild; not for a record")
    parser.add_argument("--record", type=pathlib.Path, help="write time, memory and size there")
    options = parser.parse_args()
    raw, seconds = build(options.ccache)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    memory = used.ru_maxrss * 1024
    load = os.getloadavg()[2]  # of the last 15 minutes: above the cores, others were building too
    wheel = repair(raw)
    size = wheel.stat().st_size
    assert size < LARGEST, f"{wheel.name} has {size} bytes, must have less than {LARGEST}"
    info = try_out(wheel)
    kernels = [kernel["device"] for kernel in info["kernels"]]
    record = {
        "schema": "fw-wheel/1",
        "date": time.strftime("%Y-%m-%d"),
        "machine": {"cores": os.cpu_count(), "python": platform.python_version()},
        "wheel": wheel.name,
        "bytes": size,
        "cuda_kernels": kernels.count("cuda"),
        "cpu_kernels": kernels.count("cpu"),
        "build_seconds": round(seconds, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "load_average": round(load, 1),
        "largest_process_bytes": memory,
    }
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{wheel.relative_to(ROOT)}: {size / 2**20:.1f} MiB, built in {seconds:.0f} s, "
          f"largest process {memory / 2**20:.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
