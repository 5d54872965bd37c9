"""Nsight Compute as a program: which metrics it knows, one profiled run, its kernels by launch."""

import csv
import os
import pathlib
import re
import shutil
import signal
import subprocess

MARK = "spin_kernel"  # torch.cuda._sleep(): launched before each launch that is measured
TRIES = 6
LOCATIONS = ("/opt/nvidia/nsight-compute/*/ncu", "/usr/local/cuda*/bin/ncu")
SCALE = {  # to bytes, milliseconds and MHz
    "byte": 1.0,
    "Kbyte": 1e3,
    "Mbyte": 1e6,
    "Gbyte": 1e9,
    "sector": 32.0,
    "ns": 1e-6,
    "nsecond": 1e-6,
    "us": 1e-3,
    "usecond": 1e-3,
    "ms": 1.0,
    "msecond": 1.0,
    "s": 1e3,
    "second": 1e3,
    "hz": 1e-6,
    "cycle/second": 1e-6,
    "cycle/s": 1e-6,
    "mhz": 1.0,
    "cycle/usecond": 1.0,
    "cycle/us": 1.0,
    "ghz": 1e3,
    "cycle/nsecond": 1e3,
    "cycle/ns": 1e3,
}


class Failed(RuntimeError):
    pass


def find(given=None):
    """The program: the one given, on the path, or where NVIDIA installs it."""
    path = shutil.which(given or "ncu")
    found = [path] if path else []
    for pattern in () if given else LOCATIONS:
        found += sorted(map(str, pathlib.Path("/").glob(pattern[1:])), reverse=True)
    if not found:
        raise Failed(f"{given or 'ncu'}: is not there")
    return found[0]


def version(program):
    text = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    match = re.search(r"Version (\S+)", text)
    return match[1] if match else text.strip()[-40:]


def known_metrics(program, seconds=180):
    """Base names; an empty set where ncu does not say them."""
    command = [program, "--query-metrics"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return set()
    return set(re.findall(r"^\s*([a-z0-9]+__\w+)", result.stdout, re.MULTILINE))


def choose(candidates, known):
    """{name: its metrics that ncu knows}, and the names that have none."""
    chosen, missing = {}, []
    for name, metrics in candidates.items():
        metrics = [metric for metric in metrics if not known or metric.split(".")[0] in known]
        if metrics:
            chosen[name] = metrics
        else:
            missing.append(name)
    return chosen, missing


def number(text, unit):
    """None where ncu has no value."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    scale = SCALE.get(unit, SCALE.get(unit.lower(), 1.0))
    return value * scale if value == value else None


def kernels(text):
    """The kernels of a raw page in CSV: (name, {metric: value})."""
    lines = [line for line in text.splitlines() if line and not line.startswith("==")]
    first = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        return []
    rows = list(csv.reader(lines[first:]))
    head, units = rows[0], rows[1]
    name = head.index("Kernel Name")
    columns = [n for n, title in enumerate(head) if "__" in title]
    found = []
    for row in rows[2:]:
        if len(row) != len(head):
            continue
        values = {head[n]: number(row[n], units[n]) for n in columns}
        found.append((row[name], {k: v for k, v in values.items() if v is not None}))
    return found


def by_launch(found):
    """The kernels after each mark."""
    launches = []
    for kernel in found:
        if MARK in kernel[0]:
            launches.append([])
        elif launches:
            launches[-1].append(kernel)
    return launches


def refused(log, metrics):
    """Those of the metrics that ncu complains of."""
    bad = [
        line for line in log.splitlines() if re.search(r"error|fail|invalid|unknown", line, re.I)
    ]
    bad = [line for line in bad if not line.startswith('"')]
    bases = {metric: metric.split(".")[0] for metric in metrics}
    return [metric for metric, base in bases.items() if any(base in line for line in bad)]


def run(command, seconds):
    """Its exit code; ends what it started too when the time is up."""
    child = subprocess.Popen(command, env=dict(os.environ, LC_ALL="C"), start_new_session=True)
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired as error:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise Failed(f"ncu: not done within {seconds:.0f} s") from error


def profile(program, metrics, command, folder, seconds, cache_control):
    """The launches of `command`, each a list of kernels, and the metrics that ncu would not take."""
    metrics, dropped = list(metrics), []
    log = pathlib.Path(folder) / "ncu.csv"
    for _ in range(TRIES):
        log.unlink(missing_ok=True)
        call = [program, "--profile-from-start", "off", "--csv", "--page", "raw"]
        call += ["--print-units", "base", "--cache-control", cache_control]
        call += ["--clock-control", "none", "--target-processes", "all"]
        call += ["--log-file", str(log), "--metrics", ",".join(metrics), *command]
        code = run(call, seconds)
        text = log.read_text(errors="replace") if log.exists() else ""
        launches = by_launch(kernels(text))
        if code == 0 and launches:
            return launches, dropped
        bad = refused(text, metrics)
        if not bad or len(bad) == len(metrics):
            tail = "\n".join(text.splitlines()[-15:])
            raise Failed(f"ncu: exit code {code}, {len(launches)} launches\n{tail}")
        print(f"ncu does not take {', '.join(bad)}", flush=True)
        dropped += bad
        metrics = [metric for metric in metrics if metric not in bad]
    raise Failed("ncu: too many metrics that it does not take")
