#!/usr/bin/env python3
"""Prints the tables of the documents from recorded runs, and keeps the documents equal to them.

  tools/readme_tables.py                            # prints every table
  tools/readme_tables.py --write                    # rewrites them between their markers
  tools/readme_tables.py --check                    # fails if one differs; names older records
  tools/readme_tables.py --record-compare FLASHWOK  # writes bench/results/compare.txt
  tools/readme_tables.py --record-support FLASHWOK  # writes docs/support.json
  tools/readme_tables.py --check-support FLASHWOK   # fails if the program's kernels differ from it

A table stands between <!-- table:NAME --> and <!-- /table -->. NAME: speed, memory, compare,
support, h200, generations, traffic or units; speed and memory are of bench/results/cpu_local.json,
or of another record of the folder as in speed:RECORD; the last four are empty without their record.
A figure stands within a line, between <!-- figure:NAME --> and <!-- /figure -->.
"""

import argparse
import pathlib
import re
import sys

import counter_tables
import gpu_tables
import records
from markdown_table import table
from records import RESULTS, SUPPORT, Breach, require

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEFAULT_RECORD = "cpu_local"
READMES = {"README.md": "en", "README.zh-CN.md": "zh"}
DOCUMENTS = READMES | {"docs/hopper.md": "en", "docs/zh/hopper.md": "zh"}
FIGURE = re.compile(r"(<!-- figure:([\w.-]+) -->)(.*?)(<!-- /figure -->)")
MARKER = re.compile(r"(<!-- table:([\w:.-]+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)
ALGORITHMS = ("standard", "v1", "v2", "v3")
PASSES = ("forward", "backward")

WORDS = {
    "en": {
        "none": "no record yet",
        "standard": "standard",
        "seqlen": "{size:,} {kind}",
        "problem": "problem",
        "forward": "forward",
        "backward": "backward",
        "full": "full",
        "causal": "causal",
        "peak": "V3 of FMA peak",
        "gemm": "V3 of product",
        "times": "V2 : standard",
        "ratio": "V3 : PyTorch",
        "algorithm": "algorithm",
        "refused": ", refused",
        "backends": "on",
        "needs": "needs",
        "caption": "{cpu}, {date}, seqlen {seqlens}, {heads} heads. GFLOPS of useful FLOPs, "
        "{threads}; ratios are speeds.",
        "threads": "1 thread / {} threads",
        "one": "1 thread",
        "fma": "FMA peak",
        "our": "our product on tiles in cache",
        "torch": "PyTorch {} float32 product",
        "memory": "Extra memory beside inputs and results, float32, seqlen {seqlen:,}, 1 head, "
        "head_dim {head_dim}, {threads} threads, by `Plan`.",
        "said": "The refusal: ",
        "run": "{cpu}, {date}:",
        "stop": ".",
        "list": ", ",
    },
    "zh": {
        "none": "尚无记录",
        "standard": "标准",
        "seqlen": "{kind} {size:,}",
        "problem": "问题",
        "forward": "前向",
        "backward": "反向",
        "full": "无掩码",
        "causal": "因果",
        "peak": "V3 占 FMA 峰值",
        "gemm": "V3 占矩阵乘",
        "times": "V2 : 标准",
        "ratio": "V3 : PyTorch",
        "algorithm": "算法",
        "refused": "，被拒绝",
        "backends": "设备",
        "needs": "要求",
        "caption": "{cpu}，{date}，序列长度：{seqlens}，{heads} 个头。有用 FLOP 的 GFLOPS，"
        "{threads}；比值是速度之比。",
        "threads": "1 线程 / {} 线程",
        "one": "1 线程",
        "fma": "FMA 峰值",
        "our": "缓存中块上的矩阵乘（自家微内核）",
        "torch": "PyTorch {} 的 float32 矩阵乘",
        "memory": "输入与结果之外的内存：float32，序列长度 {seqlen:,}，1 个头，head_dim {head_dim}，"
        "{threads} 线程，由 `Plan` 给出。",
        "said": "拒绝的理由：",
        "run": "{cpu}，{date}：",
        "stop": "。",
        "list": "、",
    },
}


def no_record(words, head):
    return table(head, [[words["none"]] + ["-"] * (len(head) - 1)])


def both(values, form):
    """The values of one thread and of all threads, as one cell of a table."""
    texts = ["-" if value is None else format(value, form) for value in values]
    return "-" if set(texts) == {"-"} else " / ".join(texts)


def title(words, algorithm):
    return words.get(algorithm, algorithm.upper())


def gflops(cell):
    return cell["tflops"] * 1e3 if cell and "tflops" in cell else None


def quotient(numerator, denominator):
    return numerator / denominator if numerator and denominator else None


def problem_key(cell):
    return (cell["pass"], cell["dtype"], cell["head_dim"], cell["causal"])


def speed_row(words, key, cells, threads):
    """`cells`: of this problem, by algorithm and threads."""
    kind, dtype, head_dim, causal = key

    def each(algorithm, value):
        return [value(cells.get((algorithm, count))) for count in threads]

    def torch(cell):
        return gflops(cell.get("peers", {}).get("torch_cpu")) if cell else None

    def share(name):
        return both(each("v3", lambda cell: cell and cell.get(name)), ".0%")

    rates = {algorithm: each(algorithm, gflops) for algorithm in ALGORITHMS}
    peer = each("v3", torch)
    name = [words[kind], dtype, f"d{head_dim}", words["full" if causal == "none" else "causal"]]
    return [
        " ".join(name),
        *(both(values, ".0f") for values in rates.values()),
        share("peak_share"),
        share("gemm_share"),
        both(map(quotient, rates["v2"], rates["standard"]), ".2f"),
        both(peer, ".0f"),
        both(map(quotient, rates["v3"], peer), ".2f"),
    ]


def ceilings_line(words, record):
    ceilings = record["ceilings"]
    torch = record["versions"].get("torch")
    names = [("fma_peak_gflops", words["fma"]), ("gemm_gflops", words["our"])]
    names.append(("torch_gemm_float32_gflops", words["torch"].format(torch)))
    parts = []
    for key, name in names:
        values = [ceilings.get(key), ceilings.get(key + "_all")]
        if values != [None, None]:
            parts.append(f"{name} {both(values, '.0f')}")
    return words["list"].join(parts)


def speed_table(root, words, name):
    head = [words["problem"], *(title(words, algorithm) for algorithm in ALGORITHMS)]
    head += [words["peak"], words["gemm"], words["times"], "PyTorch", words["ratio"]]
    record = records.read_bench(root, name)
    if record is None:
        return no_record(words, head)
    timed = [cell for cell in record["cells"] if "ms" in cell]
    threads = sorted({cell["threads"] for cell in timed})
    problems = {}
    for cell in timed:
        problems.setdefault(problem_key(cell), {})[cell["algorithm"], cell["threads"]] = cell
    seqlens = {cell["pass"]: cell["seqlen_k"] for cell in timed}
    caption = words["caption"].format(
        cpu=record["device"]["cpu"],
        date=record["date"],
        seqlens=words["list"].join(
            words["seqlen"].format(size=size, kind=words[kind]) for kind, size in seqlens.items()
        ),
        heads=timed[0]["num_heads"],
        threads=words["one"] if threads == [1] else words["threads"].format(threads[-1]),
    )
    ceilings = ceilings_line(words, record) + words["stop"]
    rows = [speed_row(words, key, cells, threads) for key, cells in problems.items()]
    return f"{caption}\n{ceilings}\n\n" + table(head, rows)


def size(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def memory_table(root, words, name):
    head = [words["algorithm"], *(words[kind] for kind in PASSES)]
    record = records.read_bench(root, name)
    if record is None:
        return no_record(words, head)
    planned = {}
    for cell in record["cells"]:
        if "ms" not in cell:
            planned[cell["algorithm"], cell["pass"]] = cell
    require(planned, f"{RESULTS}/{name}.json: no cell of extra memory")
    rows = []
    refusals = []
    for algorithm in ALGORITHMS:
        row = [title(words, algorithm)]
        for kind in PASSES:
            cell = planned.get((algorithm, kind))
            text = "-" if cell is None else size(cell["extra_bytes"])
            if cell and "refused" in cell:
                text += words["refused"]
                refusals.append(cell["refused"])
            row.append(text)
        rows.append(row)
    one = next(iter(planned.values()))
    caption = words["memory"].format(
        seqlen=one["seqlen_k"], head_dim=one["head_dim"], threads=one["threads"]
    )
    said = f"\n{words['said']}`{refusals[0]}`\n" if refusals else ""
    return f"{caption}\n\n" + table(head, rows) + said


def support_table(root, words):
    record = records.read_json(root, SUPPORT)
    require(record is not None, f"{SUPPORT}: is absent; write it with `make support`")
    head = [words["backends"], words["algorithm"], *(words[kind] for kind in PASSES)]
    rows = {}
    for kernel in record["kernels"]:
        row = rows.setdefault((kernel["device"], kernel["algorithm"], kernel["requirement"]), {})
        taken = row.setdefault(kernel["pass"], [])
        taken += [dtype for dtype in kernel["dtypes"].split() if dtype not in taken]
    with_needs = any(requirement for _, _, requirement in rows)
    order = sorted(rows, key=lambda key: (key[0], ALGORITHMS.index(key[1]), key[2]))
    lines = []
    for key in order:
        dtypes = [", ".join(rows[key].get(kind, "-")) for kind in PASSES]
        line = [key[0], title(words, key[1]), *dtypes]
        lines.append(line + [key[2] or "-"] if with_needs else line)
    return table(head + [words["needs"]] if with_needs else head, lines)


def compare_block(root, words):
    record = records.read_compare(root)
    if record is None:
        return no_record(words, ["`flashwok compare`"])
    heading = words["run"].format(cpu=record["cpu"], date=record["date"])
    return f"{heading}\n\n```text\n{record['text'].rstrip()}\n```\n"


def make_table(root, name, language):
    kind, _, record = name.partition(":")
    words = WORDS[language]
    if kind == "speed":
        return speed_table(root, words, record or DEFAULT_RECORD)
    if kind == "memory":
        return memory_table(root, words, record or DEFAULT_RECORD)
    for blocks in (gpu_tables.BLOCKS, counter_tables.BLOCKS):
        if kind in blocks and not record:
            return blocks[kind](root, language)
    require(kind in ("support", "compare") and not record, f"no table is called {name}")
    return support_table(root, words) if kind == "support" else compare_block(root, words)


def rewritten(root, path, language):
    """The text of a document with every table and figure as its record has it, and their names."""
    names = []

    def replace(match):
        names.append(match[2])
        made = make_table(root, match[2], language)
        return match[1] + (f"\n{made}\n" if made else "") + match[4]

    def fill(match):
        names.append(match[2])
        made = counter_tables.figure(root, match[2])
        return match[0] if made is None else match[1] + made + match[4]

    text = (root / path).read_text()
    opened = len(re.findall(r"<!-- (?:table|figure):", text))
    result = FIGURE.sub(fill, MARKER.sub(replace, text))
    require(len(names) == opened, f"{path}: a table or figure has no end of its own")
    return result, names


def write(root):
    for path, language in DOCUMENTS.items():
        text, names = rewritten(root, path, language)
        (root / path).write_text(text)
        print(f"{path}: {', '.join(names)}")


def check(root):
    """A line for each record, then a breach for each document that differs from them."""
    for line in records.states(root):
        print(line)
    for path, language in DOCUMENTS.items():
        text, _ = rewritten(root, path, language)
        for then, now in zip((root / path).read_text().splitlines(), text.splitlines()):
            require(then == now, f"{path}: has '{then}', the record gives '{now}': make tables")
        require((root / path).read_text() == text, f"{path}: a table ends too early: make tables")


def show(root):
    for path, language in DOCUMENTS.items():
        _, names = rewritten(root, path, language)
        for name in (name for name in names if name not in counter_tables.FIGURES):
            print(f"{path}, {name}:\n\n{make_table(root, name, language)}")


def main(root=ROOT, arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    task = parser.add_mutually_exclusive_group()
    task.add_argument("--write", action="store_true", help="rewrite the tables of the READMEs")
    task.add_argument("--check", action="store_true", help="fail if a table differs")
    for name in ("record-compare", "record-support", "check-support"):
        task.add_argument(f"--{name}", metavar="FLASHWOK", type=pathlib.Path)
    options = parser.parse_args(arguments)
    try:
        if options.record_compare:
            records.record_compare(root, options.record_compare)
        elif options.record_support:
            records.record_support(root, options.record_support)
        elif options.check_support:
            records.check_support(root, options.check_support)
        else:
            (write if options.write else check if options.check else show)(root)
    except KeyError as error:
        print(f"readme tables: a record lacks {error}", file=sys.stderr)
        return 1
    except (Breach, OSError) as error:
        print(f"readme tables: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
