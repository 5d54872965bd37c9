#!/usr/bin/env python3
"""Times the CUDA forward kernels and their peers in turn, and writes the record (fw-bench/1).

  bench/h200_forward.py --library libflashwok.so --peers DIR --output h200_forward.json
  ... --dims 64 --masks causal --seqs 512,16384 --only v3 --extras none   # a part of it

In every cell, ours is first held against float32 on one head; then ours and the peers are timed in
rounds, each in turn, and the median of the rounds is kept. The record is written after every cell.
--add keeps the cells that the output file has of the same sources. DIR holds peers.py; without it
there are none. Needs torch and triton, and one GPU. Exit code 1 if a kernel failed or was wrong.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import statistics
import sys
import time

import flashwok_ctypes as fw
import h200_shapes as shapes

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = "bench/h200_forward.py"
METHOD = (
    "median of {rounds} rounds, each the median of as many launches as fill 30 ms after 10 ms of "
    "warm-up, caches flushed before each launch; ours and the peers in turn in one process, in "
    "drawn orders, a rest of 0.1 s before each; random normal inputs; useful FLOPs; max_error and "
    "rmse against float32 on one head"
)
OURS = ("v3", "v2", "v1", "standard")
KEY = ("case", "algorithm", "head_dim", "causal", "seqlen_q")


def in_turn(runs, rounds, timer):
    """Milliseconds of each run in each round.

    A kernel that follows a hungry one finds less of the card's power left: every round has an order
    of its own.
    """
    times = {name: [] for name in runs}
    names = list(runs)
    order = random.Random(1)
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            times[name].append(timer(runs[name]))
    return times


def timed(shape, times):
    ms = statistics.median(times)
    return {
        "ms": ms,
        "ms_min": min(times),
        "ms_max": max(times),
        "repeats": len(times),
        "tflops": shape.flops() / ms / 1e9,
        "gbps": shape.floor_bytes() / ms / 1e6,
    }


def try_ours(machine, case, algorithm, cell, runs):
    """Adds the run to `runs`, or why not to the cell."""
    try:
        run, facts = case.ours(algorithm)
        cell |= facts
        o = run()
        machine.sync()
        cell |= case.errors(o)
        runs[algorithm] = run
    except fw.Refused as refused:
        cell["refused" if refused.unsupported else "error"] = str(refused)
    except ValueError as wrong:
        cell["error"] = str(wrong)


def try_peers(machine, case, runs):
    """Adds the peers that run to `runs`; what each cell says of them so far."""
    found = {}
    for name, run in case.peers().items():
        try:
            o = run()
            machine.sync()
            found[name] = case.errors(o)
            runs[name] = run
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error)[:200]}", flush=True)
            found[name] = {"error": str(error)[:200]}
            machine.sync()  # when that fails, the device is lost
    return found


def measure(machine, shape, algorithms, rounds):
    """The cells of a shape, one an algorithm, each with the peers."""
    case = machine.case(shape)
    cells, runs = {}, {}
    for algorithm in algorithms:
        cells[algorithm] = shape.fields() | {"algorithm": algorithm}
        try_ours(machine, case, algorithm, cells[algorithm], runs)
    if not runs:
        return list(cells.values())
    peers = try_peers(machine, case, runs)
    for name, times in in_turn(runs, rounds, machine.time).items():
        (cells[name] if name in cells else peers[name]).update(timed(shape, times))
    machine.sync()
    for cell in cells.values():
        if peers and "ms" in cell:
            cell["peers"] = peers
    return list(cells.values())


def save(path, document):
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(part, path)


class Record:
    """The document, saved after every change."""

    def __init__(self, path, head, add):
        self.path, self.document = path, head | {"ceilings": {}, "sustained": [], "cells": []}
        if not add or not path.exists():
            return
        old = json.loads(path.read_text())
        same = all(old.get(key) == head[key] for key in ("schema", "sources_sha256", "device"))
        if not same:
            raise SystemExit(f"--add: {path} is of other sources or of another device")
        for key in ("ceilings", "sustained", "cells", "traffic", "units"):
            if key in old:
                self.document[key] = old[key]

    def put(self, cells):
        new = {self._key(cell) for cell in cells}
        kept = [cell for cell in self.document["cells"] if self._key(cell) not in new]
        self.document["cells"] = kept + cells
        self.save()

    def save(self):
        save(self.path, self.document)

    @staticmethod
    def _key(cell):
        return tuple(cell[key] for key in KEY)


def best_peer(cell):
    """(name, TFLOPS) of the fastest peer, or None."""
    rates = {name: peer["tflops"] for name, peer in cell.get("peers", {}).items() if "ms" in peer}
    return max(rates.items(), key=lambda item: item[1], default=None)


def line_of(cells):
    """One line of a shape: each of ours, the best peer, and the best of ours against it."""
    texts, best = [], None
    for cell in cells:
        if "ms" in cell:
            texts.append(f"{cell['algorithm']} {cell['tflops']:.0f}")
            best = max(best or cell, cell, key=lambda one: one["tflops"])
        else:
            texts.append(f"{cell['algorithm']} {'refused' if 'refused' in cell else 'FAILED'}")
    peer = best_peer(best) if best else None
    if peer:
        texts.append(f"| {peer[0]} {peer[1]:.0f} | {best['tflops'] / peer[1]:.2f}")
    if best:
        texts.append(f"| error {best['max_error']:.1e}, {best['gbps']:.0f} GB/s")
    return " ".join(texts)


def table(cells):
    lines, groups = [], {}
    for cell in cells:
        group = (cell["case"], cell["head_dim"], cell["causal"], cell["seqlen_q"])
        groups.setdefault(group, []).append(cell)
    for (case, d, causal, seqlen), group in groups.items():
        mask = "full" if causal == "none" else "causal"
        lines.append(f"{case} d{d} {mask} {seqlen}: {line_of(group)}")
    return "\n".join(lines)


def sustain(machine, record, options):
    """V3 and FA3 for some seconds each, full, on the longest sequences."""
    if options.sustained <= 0 or "v3" not in options.only:
        return
    for shape in shapes.grid(options.dims, ("full",), (max(shapes.SEQS),)):
        case, runs = machine.case(shape), {}
        try_ours(machine, case, "v3", {}, runs)
        if "v3" in runs:
            try_peers(machine, case, runs)
        for name in [name for name in ("v3", "fa3") if name in runs]:
            found = machine.sustain(runs[name], options.sustained)
            found |= {"name": name, "head_dim": shape.head_dim, "seconds": options.sustained}
            found["tflops"] = shape.flops() / found["ms"] / 1e9
            kept = record.document["sustained"]
            same = [(one["name"], one["head_dim"]) for one in kept]
            if (name, shape.head_dim) in same:
                kept.pop(same.index((name, shape.head_dim)))
            kept.append(found)
            record.save()
            clock = f"{found.get('clock_mhz')} MHz, {found.get('power_w')} W"
            print(f"sustained {name} {shape.name()}: {found['tflops']:.0f}, {clock}", flush=True)


def execute(machine, record, options, clock=time.monotonic):
    """Every cell until the time is up; the last cells may be left out. 1 if one failed."""
    start, longest, failed = clock(), 0.0, False
    wanted = [*shapes.grid(options.dims, options.masks, options.seqs)]
    wanted += shapes.extras(options.extras, options.masks)
    record.document["ceilings"] |= machine.ceilings()
    record.save()
    print(record.document["ceilings"], flush=True)
    sustained = options.sustained * 2 * len(options.dims)
    for n, shape in enumerate(wanted):
        began = clock()
        if began - start + longest + sustained > options.seconds:
            print(f"time is up: {len(wanted) - n} of {len(wanted)} shapes are left out")
            break
        algorithms = shapes.algorithms(shape, options.only)
        if not algorithms:
            continue
        cells = measure(machine, shape, algorithms, options.rounds)
        record.put(cells)
        print(f"{shape.name()}: {line_of(cells)}", flush=True)
        for cell in cells:
            if "error" in cell:
                print(f"  {cell['algorithm']} FAILED: {cell['error']}", flush=True)
                failed = True
        longest = max(longest, clock() - began)
    sustain(machine, record, options)
    return 1 if failed else 0


def parse(arguments):
    def choice(names):
        def read(text):
            parts = [] if text == "none" else text.split(",")
            for part in parts:
                if part not in names:
                    raise argparse.ArgumentTypeError(f"{part} is not one of {', '.join(names)}")
            return parts

        return read

    def numbers(text):
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("h200_forward.json"))
    parser.add_argument("--peers", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--add", action="store_true", help="to what the output file has")
    parser.add_argument("--dims", type=numbers, default=list(shapes.DIMS))
    parser.add_argument("--masks", type=choice(shapes.MASKS), default=list(shapes.MASKS))
    parser.add_argument("--seqs", type=numbers, default=list(shapes.SEQS))
    parser.add_argument("--extras", type=choice(shapes.EXTRAS), default=list(shapes.EXTRAS))
    parser.add_argument("--only", type=choice(OURS), default=list(OURS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=200.0, help="no cell begins after them")
    parser.add_argument("--sustained", type=float, default=2.0, help="seconds a kernel; 0: none")
    parser.add_argument("--nvcc", help="its version, for the record")
    return parser.parse_args(arguments)


def head_of(machine, options):
    sys.path.insert(0, str(ROOT / "tools"))
    import records

    versions = machine.versions()
    if options.nvcc:
        versions["nvcc"] = options.nvcc
    return {
        "schema": "fw-bench/1",
        "program": PROGRAM,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": machine.device(),
        "versions": versions,
        "sources_sha256": records.sources_sha256(ROOT, PROGRAM),
        "method": METHOD.format(rounds=options.rounds),
    }


def find_peers(folder):
    if folder is None:
        return None
    sys.path.insert(0, str(folder))
    import peers

    print("peers:", *peers.available(), flush=True)
    return peers


def main(arguments=None):
    options = parse(arguments)
    from h200_machine import Machine

    machine = Machine(options.library, find_peers(options.peers))
    record = Record(options.output, head_of(machine, options), options.add)
    code = execute(machine, record, options)
    print("\n" + table(record.document["cells"]))
    return code


if __name__ == "__main__":
    sys.exit(main())
