"""What ncu counted, from bench/results/h200_forward.json: bytes moved and units kept busy; empty
until that record has them. And the figures that documents quote of the record."""

import records
from markdown_table import table

RECORD = "h200_forward"
ALGORITHMS = ("standard", "v1", "v2", "v3")
NAMES = {"fa3": "FA3"}
UNITS = ("tensor", "xu", "fma", "alu", "issue", "shared_banks", "shared_lsu")

WORDS = {
    "en": {
        "traffic": "DRAM bytes of one launch: measured, model, floor. {device}, {date}, bfloat16, "
        "full, 16,384 tokens, hidden size 2,048, by `ncu` {ncu}, in MB. By the formula: between "
        "slow memory and the SMs, without a cache between them; the SMs ask L2 for as much. Floor: "
        "Q, K, V, O and lse once.",
        "within": " What V1 to V3 moved between L2 and the SMs is the formula's within {off:.1%}; "
        "cuBLAS, in standard, takes its operands tile by tile.",
        "units": "Shares of the units while the SMs are active, one launch each, by `ncu` {ncu}; "
        "{device}, {date}, bfloat16, 16,384 tokens, hidden size 2,048.",
        "problem": "MB",
        "cell": "d{head_dim} {mask} {seqlen:,} {name}",
        "full": "full",
        "causal": "causal",
        "standard": "standard",
        "columns": ["DRAM read", "written", "SM and L2", "by the formula", "floor", "DRAM : floor"],
        "share": "of the peak",
        "tensor": "products",
        "xu": "exp, convert",
        "fma": "FMA",
        "alu": "ALU",
        "issue": "issue",
        "shared_banks": "shared banks",
        "shared_lsu": "shared by LSU",
        "clock": "MHz",
    },
    "zh": {
        "traffic": "一次启动的 DRAM 字节：实测、模型、下限。{device}，{date}，bfloat16，无掩码，共 16,384 个 token，"
        "隐藏维度 2,048，由 `ncu` {ncu} 测得，单位 MB。按公式：慢速内存与 SM 之间、没有缓存时的字节，也就是 SM 向 L2 "
        "要的字节。下限：Q、K、V、O、lse 各一次。",
        "within": "V1 到 V3 在 L2 与 SM 之间搬的，与公式相差不超过 {off:.1%}；标准注意力里的 cuBLAS 按它自己的块取操作数。",
        "units": "SM 活动期间各单元的占用，每项一次启动，由 `ncu` {ncu} 测得；{device}，{date}，bfloat16，"
        "共 16,384 个 token，隐藏维度 2,048。",
        "problem": "MB",
        "cell": "d{head_dim} {mask} {seqlen:,} {name}",
        "full": "无掩码",
        "causal": "因果",
        "standard": "标准",
        "columns": ["DRAM 读", "写", "SM 与 L2 之间", "按公式", "下限", "DRAM : 下限"],
        "share": "占峰值",
        "tensor": "乘法",
        "xu": "指数、转换",
        "fma": "FMA",
        "alu": "ALU",
        "issue": "发射",
        "shared_banks": "共享内存 bank",
        "shared_lsu": "共享内存（LSU）",
        "clock": "MHz",
    },
}


def megabytes(*counts):
    return "-" if None in counts else f"{sum(counts) / 1e6:,.0f}"


def title(words, cell):
    mask = words["full" if cell["causal"] == "none" else "causal"]
    name = words.get(cell["name"]) or NAMES.get(cell["name"], cell["name"].upper())
    return words["cell"].format(
        head_dim=cell["head_dim"], mask=mask, seqlen=cell["seqlen_k"], name=name
    )


def part_of(root, part):
    """The record and its part, or None twice."""
    record = records.read_bench(root, RECORD)
    found = record.get(part) if record else None
    return (record, found) if found else (None, None)


def caption(words, part, record, found):
    device = record["device"]["name"]
    return words[part].format(device=device, date=record["date"], ncu=found["ncu"])


def farthest_from_formula(cells):
    """Of the bytes between L2 and the SMs, as a share, of our own tiles; None without a count."""
    shares = []
    for cell in cells:
        if cell["name"] != "standard" and {"l2_read", "l2_written"} <= cell.keys():
            model = cell["model_read"] + cell["model_written"]
            shares.append(abs((cell["l2_read"] + cell["l2_written"]) / model - 1))
    return max(shares, default=None)


def traffic_block(root, language):
    """A row a kernel: DRAM, L2, the formula, the floor."""
    record, found = part_of(root, "traffic")
    if found is None:
        return ""
    words = WORDS[language]
    rows = []
    for cell in found["cells"]:
        read, written = cell.get("dram_read"), cell.get("dram_written")
        floor = cell["floor_read"] + cell["floor_written"]
        moved = None if None in (read, written) else (read + written) / floor
        rows.append(
            [
                title(words, cell),
                megabytes(read),
                megabytes(written),
                megabytes(cell.get("l2_read"), cell.get("l2_written")),
                megabytes(cell["model_read"], cell["model_written"]),
                megabytes(floor),
                "-" if moved is None else f"{moved:.2f}",
            ]
        )
    head = [words["problem"], *words["columns"]]
    off = farthest_from_formula(found["cells"])
    text = caption(words, "traffic", record, found)
    text += "" if off is None else words["within"].format(off=off)
    return f"{text}\n\n{table(head, rows)}"


def units_block(root, language):
    """A row a kernel: the shares of those units that were counted in any of them, and the clock."""
    record, found = part_of(root, "units")
    if found is None:
        return ""
    words = WORDS[language]
    counted = [unit for unit in UNITS if any(unit in cell for cell in found["cells"])]
    rows = []
    for cell in found["cells"]:
        shares = [f"{cell[unit]:.0f}%" if unit in cell else "-" for unit in counted]
        clock = f"{cell['clock_mhz']:.0f}" if "clock_mhz" in cell else "-"
        rows.append([title(words, cell), *shares, clock])
    head = [words["share"], *(words[unit] for unit in counted), words["clock"]]
    return f"{caption(words, 'units', record, found)}\n\n{table(head, rows)}"


BLOCKS = {"traffic": traffic_block, "units": units_block}


def _balance(record):
    """FLOPs of products in the time of a byte."""
    ceilings = record["ceilings"]
    return ceilings["cublas_bf16_tflops"] * 1e3 / ceilings["copy_gbps"]


# A head moves N / 2 FLOPs a byte, N / 4 under a causal mask: the keys at which products take as long.
FIGURES = {
    "cublas_tflops": lambda record: f"{record['ceilings']['cublas_bf16_tflops']:.0f}",
    "copy_gbps": lambda record: f"{record['ceilings']['copy_gbps']:,.0f}",
    "flops_a_byte": lambda record: f"{_balance(record):.0f}",
    "keys_full": lambda record: f"{2 * _balance(record):.0f}",
    "keys_causal": lambda record: f"{4 * _balance(record):.0f}",
}


def figure(root, name):
    """Its text, or None without the record."""
    records.require(name in FIGURES, f"no figure is called {name}")
    record = records.read_bench(root, RECORD)
    return FIGURES[name](record) if record else None
