"""The README tables of bench/results/h200_forward.json; empty until that record is there."""

import records
from markdown_table import table

RECORD = "h200_forward"
OURS = ("v3", "v2")
GENERATIONS = ("standard", "v1", "v2", "v3")
PEERS = {"cudnn": "cuDNN", "fa2": "FA2", "fa3": "FA3", "fa4": "FA4"}

WORDS = {
    "en": {
        "problem": "TFLOPS",
        "full": "full",
        "causal": "causal",
        "best": "best peer",
        "ratio": "V3 : best peer",
        "standard": "standard",
        "forward": "{device}, {date}, forward, bfloat16, 16,384 tokens, hidden size 2,048. Ours "
        "and the peers ({peers}) in turn in one run; in that run cuBLAS reached {gemm:.0f} TFLOPS, "
        "a copy {copy:,.0f} GB/s.",
        "extras": "What is not the plain case:",
        "gqa": "32 heads on 8, batch 4",
        "varlen": "{batch} sequences of up to {seqlen:,}, 16 heads",
        "window": "window {window}, {seqlen:,} keys",
        "sustained": "Held for {seconds:.0f} s, full, 16,384 keys: {texts}.",
        "watch": "{name} d{head_dim} {tflops:.0f} TFLOPS",
        "clock": " at {clock_mhz:.0f} MHz and {power_w:.0f} W",
        "generations": "The four generations, the same function on the same tensors, TFLOPS:",
        "list": ", ",
    },
    "zh": {
        "problem": "TFLOPS",
        "full": "无掩码",
        "causal": "因果",
        "best": "最快的对手",
        "ratio": "V3 : 最快的对手",
        "standard": "标准",
        "forward": "{device}，{date}，前向，bfloat16，共 16,384 个 token，隐藏维度 2,048。"
        "我们与对手（{peers}）在同一次运行中轮流计时；同一次运行中 cuBLAS {gemm:.0f} TFLOPS，"
        "拷贝 {copy:,.0f} GB/s。",
        "extras": "非普通情形：",
        "gqa": "32 个头对 8 个，批量 4",
        "varlen": "{batch} 个序列，最长 {seqlen:,}，16 个头",
        "window": "窗口 {window}，{seqlen:,} 个键",
        "sustained": "持续 {seconds:.0f} 秒，无掩码，16,384 个键：{texts}。",
        "watch": "{name} d{head_dim} {tflops:.0f} TFLOPS",
        "clock": "（{clock_mhz:.0f} MHz，{power_w:.0f} W）",
        "generations": "四代算法，同一函数，同样的张量，TFLOPS：",
        "list": "、",
    },
}


def rate(cell):
    return cell.get("tflops") if cell else None


def whole(value):
    return "-" if value is None else f"{value:.0f}"


def ratio(numerator, denominator):
    return f"{numerator / denominator:.2f}" if numerator and denominator else "-"


def best_peer(cells):
    """(TFLOPS, name) of the fastest peer in any of the cells of a problem."""
    rates = []
    for cell in cells.values():
        for name, peer in cell.get("peers", {}).items():
            if "tflops" in peer:
                rates.append((peer["tflops"], PEERS.get(name, name)))
    return max(rates, default=(None, "-"))


def mask(words, cell):
    return words["full" if cell["causal"] == "none" else "causal"]


def problems(record, grid):
    """{(case, head_dim, causal): {seqlen: {algorithm: cell}}} of the grid, or of the rest."""
    found = {}
    for cell in record["cells"]:
        if (cell["case"] == "grid") == grid:
            key = (cell["case"], cell["head_dim"], cell["causal"])
            by_seqlen = found.setdefault(key, {})
            by_seqlen.setdefault(cell["seqlen_k"], {})[cell["algorithm"]] = cell
    return found


def row_against_peers(cells):
    """Each of ours, the best peer with its name, and V3 against it."""
    peer, name = best_peer(cells)
    texts = [whole(rate(cells.get(algorithm))) for algorithm in OURS]
    against = ratio(rate(cells.get("v3")), peer)
    return [*texts, f"{whole(peer)} {name}" if peer else "-", against]


def grid_table(words, record):
    found = problems(record, True)
    seqlens = sorted({seqlen for by_seqlen in found.values() for seqlen in by_seqlen})
    names = ["V3", "V2", words["best"], words["ratio"]]
    rows = []
    for (_, head_dim, _), by_seqlen in found.items():
        title = f"d{head_dim} {mask(words, next(iter(next(iter(by_seqlen.values())).values())))}"
        columns = [row_against_peers(by_seqlen.get(seqlen, {})) for seqlen in seqlens]
        for n, name in enumerate(names):
            rows.append([f"{title} {name}", *(column[n] for column in columns)])
    return table([words["problem"], *(f"{seqlen:,}" for seqlen in seqlens)], rows)


def extras_table(words, record):
    found = problems(record, False)
    if not found:
        return ""
    rows = []
    for (case, head_dim, _), by_seqlen in found.items():
        cells = next(iter(by_seqlen.values()))
        cell = next(iter(cells.values()))
        window = tuple(cell["window"])
        text = words[case].format(batch=cell["batch"], seqlen=cell["seqlen_k"], window=window)
        title = f"{text}, d{head_dim}" + ("" if case == "window" else f" {mask(words, cell)}")
        rows.append([title, *row_against_peers(cells)])
    head = [words["problem"], "V3", "V2", words["best"], words["ratio"]]
    return f"\n{words['extras']}\n\n{table(head, rows)}"


def sustained_line(words, record):
    texts = []
    for one in record.get("sustained", []):
        name = PEERS.get(one["name"], one["name"].upper())
        text = words["watch"].format(**one | {"name": name})
        texts.append(text + (words["clock"].format(**one) if "clock_mhz" in one else ""))
    if not texts:
        return ""
    seconds = record["sustained"][0]["seconds"]
    joined = words["list"].join(texts)
    return "\n" + words["sustained"].format(seconds=seconds, texts=joined) + "\n"


def peers_block(root, language):
    """Ours against the peers: the grid, what is not plain, and a long run."""
    record = records.read_bench(root, RECORD)
    if record is None:
        return ""
    words = WORDS[language]
    timed = {
        name
        for cell in record["cells"]
        for name, peer in cell.get("peers", {}).items()
        if "tflops" in peer
    }
    caption = words["forward"].format(
        device=record["device"]["name"],
        date=record["date"],
        peers=words["list"].join(text for name, text in PEERS.items() if name in timed) or "-",
        gemm=record["ceilings"]["cublas_bf16_tflops"],
        copy=record["ceilings"]["copy_gbps"],
    )
    parts = [grid_table(words, record), extras_table(words, record), sustained_line(words, record)]
    return f"{caption}\n\n" + "".join(parts)


def generations_block(root, language):
    """Standard, V1, V2 and V3 at the longest sequences that all of them were timed on."""
    record = records.read_bench(root, RECORD)
    words = WORDS[language]
    rows = []
    for (_, head_dim, _), by_seqlen in problems(record, True).items() if record else ():
        complete = {
            seqlen: [rate(cells.get(algorithm)) for algorithm in GENERATIONS]
            for seqlen, cells in by_seqlen.items()
        }
        complete = {seqlen: rates for seqlen, rates in complete.items() if all(rates)}
        if not complete:
            continue
        seqlen, rates = max(complete.items())
        standard, v1, v2, v3 = rates
        title = f"d{head_dim} {mask(words, by_seqlen[seqlen]['v3'])} {seqlen:,}"
        ratios = [ratio(v1, standard), ratio(v2, v1), ratio(v3, v2)]
        rows.append([title, *map(whole, rates), *ratios])
    if not rows:
        return ""
    head = [words["problem"], words["standard"], "V1", "V2", "V3"]
    head += [f"V1 : {words['standard']}", "V2 : V1", "V3 : V2"]
    return f"{words['generations']}\n\n{table(head, rows)}"


BLOCKS = {"h200": peers_block, "generations": generations_block}
