#!/usr/bin/env python3
"""Counts what the CUDA forward kernels move and which units they keep busy, into a record.

  bench/h200_traffic.py --library libflashwok.so --peers DIR --output h200_forward.json

Runs itself under ncu, one launch of each kernel after one to warm up, and adds two parts to the
record that h200_forward.py wrote of the same sources on the same device. `traffic`: the bytes that
DRAM and L2 moved, beside those of the formula for the kernel's tiles and beside the floor, Q, K, V,
O and lse once. `units`: the shares of the units of V3 and of FA3. A metric that ncu does not know is
left out, and said. Needs torch, ncu and one GPU. Exit code 1 if a kernel failed or was wrong.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import h200_forward
import h200_shapes as shapes
import ncu

ALGORITHMS = ("standard", "v1", "v2", "v3")
TRAFFIC_DIMS, TRAFFIC_SEQS = (64, 128), (4096, 16384)
UNIT_CELLS = (("full", 16384), ("causal", 4096))
UNIT_NAMES = ("v3", "fa3")

# Of each, the first that has a value above 0 is kept.
TRAFFIC_METRICS = {
    "dram_read": ("dram__bytes_read.sum",),
    "dram_written": ("dram__bytes_write.sum",),
    "l2_read": ("l1tex__m_xbar2l1tex_read_bytes.sum", "lts__t_sectors_srcunit_tex_op_read.sum"),
    "l2_written": (
        "l1tex__m_l1tex2xbar_write_bytes.sum",
        "lts__t_sectors_srcunit_tex_op_write.sum",
    ),
    "ms": ("gpu__time_duration.sum",),
}
ACTIVE = ".avg.pct_of_peak_sustained_active"
UNIT_METRICS = {
    "tensor": (
        "sm__pipe_tensor_cycles_active" + ACTIVE,
        "sm__pipe_tensor_op_hmma_cycles_active" + ACTIVE,
        "sm__inst_executed_pipe_tensor_op_hmma" + ACTIVE,
        "sm__inst_executed_pipe_tensor_op_gmma" + ACTIVE,
    ),
    "xu": ("sm__inst_executed_pipe_xu" + ACTIVE,),
    "fma": ("sm__pipe_fma_cycles_active" + ACTIVE, "sm__inst_executed_pipe_fma" + ACTIVE),
    "alu": ("sm__pipe_alu_cycles_active" + ACTIVE, "sm__inst_executed_pipe_alu" + ACTIVE),
    "issue": ("sm__inst_issued" + ACTIVE, "smsp__issue_active" + ACTIVE),
    "shared_banks": ("l1tex__data_bank_reads" + ACTIVE,),
    "shared_lsu": ("l1tex__data_pipe_lsu_wavefronts_mem_shared" + ACTIVE,),
    "clock_mhz": ("sm__cycles_elapsed.avg.per_second", "gpc__cycles_elapsed.avg.per_second"),
    "ms": ("gpu__time_duration.sum",),
}
METHOD = (
    "ncu, one launch after one to warm up, clocks as they are, cache control {cache}; "
    "traffic: all kernels of a launch together, what is still in L2 at the end is not yet written "
    "to DRAM; units: the longest kernel of the launch, per cent of the peak while the SMs are active"
)


def traffic_jobs():
    for shape in shapes.grid(TRAFFIC_DIMS, ("full",), TRAFFIC_SEQS):
        for algorithm in ALGORITHMS:
            yield shape, algorithm


def unit_jobs():
    for mask, seqlen in UNIT_CELLS:
        for shape in shapes.grid(shapes.DIMS, (mask,), (seqlen,)):
            for name in UNIT_NAMES:
                yield shape, name


JOBS = {"traffic": traffic_jobs, "units": unit_jobs}


def launch(machine, jobs):
    """Launches each job once with the profiler on, a mark before it; what there is to say of each."""
    facts, case = [], None
    for shape, name in jobs:
        if case is None or case.shape != shape:
            case = machine.case(shape)
        if name in ALGORITHMS:
            run, said = case.ours(name)
        else:
            run, said = case.peers().get(name), {}
        if run is None:
            continue
        o = run()
        machine.sync()
        said |= case.errors(o)
        machine.profile(run)
        facts.append(shape.fields() | {"name": name} | said)
        print(f"{shape.name()} {name}", flush=True)
    return facts


def pick(kernels, chosen, merge):
    """{name: (metric, value)}, `merge` of the values of the kernels."""
    picked = {}
    for name, metrics in chosen.items():
        for metric in metrics:
            values = [values[metric] for _, values in kernels if metric in values]
            if len(values) == len(kernels) and merge(values) > 0:
                picked[name] = (metric, merge(values))
                break
    return picked


def cell_of(part, fact, kernels, chosen):
    """A cell of the record."""
    if part == "units":
        times = [values.get("gpu__time_duration.sum", 0) for _, values in kernels]
        kernels = [kernels[times.index(max(times))]]
    picked = pick(kernels, chosen, sum)
    kept = ("name", "head_dim", "causal", "batch", "seqlen_q", "seqlen_k", "num_heads", "kernel")
    kept += ("tile_q", "tile_kv", "extra_bytes") if part == "traffic" else ()
    cell = {key: fact[key] for key in kept if key in fact}
    cell["kernels"] = [name[:120] for name, _ in kernels]
    cell |= {name: value for name, (_, value) in picked.items()}
    if part == "traffic":
        for key in ("model_read", "model_written", "floor_read", "floor_written"):
            cell[key] = fact[key]
    return cell, {name: metric for name, (metric, _) in picked.items()}


def measure(part, options, program, known):
    """A part of the record."""
    candidates = TRAFFIC_METRICS if part == "traffic" else UNIT_METRICS
    chosen, missing = ncu.choose(candidates, known)
    for name in missing:
        print(f"ncu knows no metric for {name}: {', '.join(candidates[name])}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        facts_file = pathlib.Path(folder) / "facts.json"
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--launch", part]
        command += ["--library", str(options.library), "--output", str(facts_file)]
        command += ["--peers", str(options.peers)] if options.peers else []
        metrics = [metric for metrics in chosen.values() for metric in metrics]
        launches, dropped = ncu.profile(
            program, metrics, command, folder, options.seconds, options.cache_control
        )
        facts = json.loads(facts_file.read_text())
    if len(launches) != len(facts) or not all(launches):
        raise ncu.Failed(f"ncu: {len(launches)} launches, {len(facts)} were made")
    cells, used = [], {}
    for fact, kernels in zip(facts, launches, strict=True):
        cell, metrics = cell_of(part, fact, kernels, chosen)
        cells.append(cell)
        used |= metrics
    lost = sorted(set(candidates) - set(used))
    return {
        "method": METHOD.format(cache=options.cache_control),
        "ncu": ncu.version(program),
        "metrics": used,
        "without": lost,
        "not_taken": dropped,
        "cells": cells,
    }


def line_of(part, cell):
    values = {key: value for key, value in cell.items() if isinstance(value, float)}
    keys = [key for key in values if key not in ("ms",)]
    if part == "traffic":
        texts = [f"{key} {values[key] / 1e6:,.0f}" for key in keys]
        texts.append(f"model {cell['model_read'] / 1e6:,.0f} + {cell['model_written'] / 1e6:,.0f}")
        texts.append(f"floor {cell['floor_read'] / 1e6:,.0f} + {cell['floor_written'] / 1e6:,.0f}")
    else:
        texts = [f"{key} {values[key]:.1f}" for key in keys]
    mask = "full" if cell["causal"] == "none" else "causal"
    return f"d{cell['head_dim']} {mask} {cell['seqlen_q']} {cell['name']}: {', '.join(texts)}"


def check_same(record, head, path):
    for key in ("schema", "sources_sha256", "device"):
        if record.get(key) != head[key]:
            raise SystemExit(f"{path}: of other sources or of another device ({key})")


def execute(machine, options):
    """Every part into the record."""
    path = options.output
    if not path.exists():
        raise SystemExit(f"{path}: there is no record to add to; h200_forward.py writes one")
    document = json.loads(path.read_text())
    check_same(document, h200_forward.head_of(machine, options), path)
    program = ncu.find(options.ncu)
    known = ncu.known_metrics(program)
    print(f"{program} {ncu.version(program)}: {len(known)} metrics", flush=True)
    texts = []
    for part in options.parts:
        document[part] = measure(part, options, program, known)
        h200_forward.save(path, document)
        texts += [line_of(part, cell) for cell in document[part]["cells"]]
        without = document[part]["without"]
        texts.append(f"{part}: without {', '.join(without)}" if without else f"{part}: complete")
    print("\n" + "\n".join(texts))
    return 0


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("h200_forward.json"))
    parser.add_argument("--peers", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--parts", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--cache-control", choices=("all", "none"), default="all")
    parser.add_argument("--ncu", help="the program, where it is not on the path")
    parser.add_argument("--seconds", type=float, default=240.0, help="of a part at most")
    parser.add_argument("--launch", choices=JOBS, help=argparse.SUPPRESS)  # the run under ncu
    options = parser.parse_args(arguments)
    options.nvcc, options.rounds = None, 0
    return options


def main(arguments=None):
    options = parse(arguments)
    from h200_machine import Machine

    machine = Machine(options.library, h200_forward.find_peers(options.peers))
    if options.launch is None:
        try:
            return execute(machine, options)
        except ncu.Failed as failed:
            print(failed, file=sys.stderr)
            return 1
    facts = launch(machine, JOBS[options.launch]())
    options.output.write_text(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
