#!/usr/bin/env python3
"""Draws a block of a GPU's timeline (flashwok trace --device cuda -o FILE) as an SVG: all of it, and
below a few steps of the middle, enlarged.

  draw_timeline.py FILE -o timeline.svg [--block N] [--steps 4] [--lang en|zh]
  draw_timeline.py FILE --shares [--block N]     what each role spends its time on, as a table
"""

import argparse
import html
import sys

import fw_trace

WIDTH, LEFT, RIGHT = 1180, 150, 20
LANE, GAP = 20, 6
# Kinds by colours that differ for every eye (Okabe and Ito); what waits is pale.
STYLES = {
    "load": "#56b4e9",
    "store": "#56b4e9",
    "product S": "#0072b2",
    "product O": "#e69f00",
    "softmax": "#009e73",
    "rescale": "#cc79a7",
    "pack": "#cc79a7",
    "finalize": "#cc79a7",
    "issue": "#333333",
    "turn": "#f0e442",
    "wait": "#dddddd",
    "schedule": "#dddddd",
    "skip": "#f5f5f5",
}
WORDS = {
    "en": {
        "whole": "Block {block} on SM {sm}: all of it",
        "part": "{steps} steps of its middle",
        "producer": "producer",
        "consumer": "consumer {n}",
        "tensor": "tensor core, {n}",
        "copies": "copy engine",
        "legend": [
            ("load", "load, store"),
            ("product S", "S = Q K^T"),
            ("product O", "O += P V"),
            ("softmax", "softmax"),
            ("rescale", "rescale, pack, finalize"),
            ("issue", "issue"),
            ("turn", "wait for the turn"),
            ("wait", "wait"),
        ],
        "time": "microseconds; asynchronous work is drawn from its issue until it was seen to be done",
    },
    "zh": {
        "whole": "SM {sm} 上的线程块 {block}：全程",
        "part": "中间的 {steps} 步",
        "producer": "生产者",
        "consumer": "消费者 {n}",
        "tensor": "张量核心，{n}",
        "copies": "拷贝引擎",
        "legend": [
            ("load", "取、送"),
            ("product S", "S = Q K^T"),
            ("product O", "O += P V"),
            ("softmax", "softmax"),
            ("rescale", "重缩放、打包、收尾"),
            ("issue", "发出"),
            ("turn", "等轮次"),
            ("wait", "等待"),
        ],
        "time": "微秒；异步的活从发出画到看见它完成为止",
    },
}


def style(event):
    name = f"{event['kind']} {event['tensor']}"
    return name if name in STYLES else event["kind"]


def label(event):
    """What stands in a box that has room."""
    tile = f" {event['k_tile']}" if event["k_tile"] >= 0 else ""
    names = {"softmax": "softmax", "product": event["tensor"], "load": event["tensor"]}
    return names[event["kind"]] + tile if event["kind"] in names else ""


class Lanes:
    """Which events stand in which row, of one block."""

    def __init__(self, trace, block, words):
        self.names = trace.tracks(block)
        if not self.names:
            raise SystemExit(f"block {block} is not recorded")
        self.by_name = {name: [] for name in self.names.values()}
        for event in trace.events:
            if event["track"] in self.names:
                self.by_name[self.names[event["track"]]].append(event)
        self.rows = [(words["producer"], self.by_name["producer"])]  # title, events
        copies = words["copies"]
        for tensor in "QKV":
            for name in self._starting(f"copy engine, {tensor} to stage "):
                self.rows.append((f"{copies}, {tensor} {name[-1]}", self.by_name[name]))
        for name in self._starting("consumer "):
            n = name.split()[1]
            self.rows.append((words["consumer"].format(n=n), self.by_name[name]))
            for tensor in "SO":
                unit = self.by_name[f"tensor core, {tensor} of consumer {n}"]
                self.rows.append((words["tensor"].format(n=f"{tensor} {n}"), unit))
            self.rows.append((f"{copies}, O {n}", self.by_name[f"copy engine, O of consumer {n}"]))

    def _starting(self, start):
        return [name for name in self.by_name if name.startswith(start)]

    def span(self):
        events = [event for events in self.by_name.values() for event in events]
        return min(e["t0"] for e in events), max(e["end"] for e in events)

    def middle(self, steps):
        """From when to when consumer 0 did so many steps amid its longest work tile, and how many;
        None where it has no two."""
        works = {}
        for event in self.by_name["consumer 0"]:
            if event["kind"] == "softmax":
                works.setdefault((event["head"], event["q_tile"]), []).append(event["t0"])
        starts = max(works.values(), key=len, default=[])
        steps = min(steps, len(starts) - 1)
        if steps < 1:
            return None
        first = (len(starts) - steps) // 2
        return starts[first], starts[first + steps], steps


def panel(lanes, begin, end, top, title, tooltips):
    """SVG of the rows between two times, and where it ends."""
    scale = (WIDTH - LEFT - RIGHT) / (end - begin)
    out = [f'<text class="t" x="{LEFT}" y="{top}">{html.escape(title)}</text>']
    y = top + 8
    for name, events in lanes.rows:
        out.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{html.escape(name)}</text>')
        out.append(f'<path class="l" d="M{LEFT} {y + LANE}H{WIDTH - RIGHT}"/>')
        for event in events:
            if event["end"] <= begin or event["t0"] >= end or event["duration"] == 0:
                continue
            x = LEFT + (max(event["t0"], begin) - begin) * scale
            width = (min(event["end"], end) - max(event["t0"], begin)) * scale
            box = (f'<rect class="{style(event).replace(" ", "")}" x="{x:.1f}" y="{y}" '
                   f'width="{max(width, 0.3):.1f}" height="{LANE}"')
            if tooltips:
                what = (f"{event['kind']} {event['tensor']}, head {event['head']}, Q tile "
                        f"{event['q_tile']}, KV tile {event['k_tile']}: {event['duration']} ns")
                box += f"><title>{html.escape(what)}</title></rect>"
            else:
                box += "/>"
            out.append(box)
            text = label(event)
            if tooltips and text and width > 7 * len(text):
                light = style(event) in ("product S", "softmax")
                out.append(f'<text class="{"w" if light else "b"}" x="{x + width / 2:.1f}" '
                           f'y="{y + 14}" text-anchor="middle">{html.escape(text)}</text>')
        y += LANE + GAP
    step = 10 ** len(str(int((end - begin) / 10))) / 2  # ns between the marks of the axis
    while (end - begin) / step > 12:
        step *= 2
    tick = begin - begin % step + step
    while tick < end:
        x = LEFT + (tick - begin) * scale
        out.append(f'<path class="g" d="M{x:.1f} {top + 8}V{y}"/>'
                   f'<text x="{x:.1f}" y="{y + 12}" text-anchor="middle">{tick / 1000:g}</text>')
        tick += step
    return out, y + 34


def draw(trace, block, steps, words):
    lanes = Lanes(trace, block, words)
    sm = next(b["sm"] for b in trace.header["blocks"] if b["block"] == block)
    begin, end = lanes.span()
    body, y = panel(lanes, begin, end, 20, words["whole"].format(block=block, sm=sm), False)
    part = lanes.middle(steps)
    if part:
        more, y = panel(lanes, part[0], part[1], y + 8, words["part"].format(steps=part[2]), True)
        body += more
    x = LEFT
    for name, text in words["legend"]:
        body.append(f'<rect class="{name.replace(" ", "")}" x="{x}" y="{y - 12}" width="14" '
                    f'height="14"/><text x="{x + 19}" y="{y}">{html.escape(text)}</text>')
        x += 36 + sum(6.5 if ord(c) < 0x2E80 else 13 for c in text)
    body.append(f'<text x="{LEFT}" y="{y + 20}">{html.escape(words["time"])}</text>')
    css = "".join(f'.{n.replace(" ", "")}{{fill:{c}}}' for n, c in STYLES.items())
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 30:.0f}" '
        'font-family="sans-serif" font-size="12">',
        f"<style>rect{{stroke:#fff;stroke-width:.3}}.t{{font-weight:bold}}.w{{fill:#fff}}"
        f".l{{stroke:#ccc;stroke-width:.5}}.g{{stroke:#888;stroke-width:.4;stroke-dasharray:2 3;"
        f"fill:none}}{css}</style>",
        f'<rect width="{WIDTH}" height="{y + 30:.0f}" style="fill:#fff"/>',
        *body, "</svg>", ""])


def shares(trace, block):
    """Markdown: of the time between a role's first and last step, the part of each kind of step."""
    names = trace.tracks(block)
    roles = {t: n for t, n in names.items() if n == "producer" or n.startswith("consumer ")}
    sums = {}
    for event in trace.events:
        if event["track"] in roles:
            key = f"{event['kind']} {event['tensor']}"
            sums.setdefault(key, dict.fromkeys(roles, 0))[event["track"]] += event["duration"]
    whole = {t: max(1, sum(of[t] for of in sums.values())) for t in roles}
    lines = ["| | " + " | ".join(roles.values()) + " |", "|---" * (1 + len(roles)) + "|"]
    for key, of in sorted(sums.items(), key=lambda item: -sum(item[1].values())):
        cells = (f"{100 * of[t] / whole[t]:.1f} %" if of[t] else "" for t in roles)
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("-o", "--output")
    parser.add_argument("--block", type=int)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--lang", choices=WORDS, default="en")
    parser.add_argument("--shares", action="store_true")
    arguments = parser.parse_args()
    trace = fw_trace.read(arguments.trace)
    if "blocks" not in trace.header:
        sys.exit(f"{arguments.trace}: not of a GPU")
    block = trace.header["blocks"][0]["block"] if arguments.block is None else arguments.block
    if arguments.shares:
        print(shares(trace, block))
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(draw(trace, block, arguments.steps, WORDS[arguments.lang]))


if __name__ == "__main__":
    main()
