"""tools/draw_timeline.py on a trace of V3 that ran on the emulator; the argument is the command line
with made-up CUDA devices. Recorded traces in examples/traces are held to the same."""

import contextlib
import io
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import draw_timeline
import fw_trace

PROGRAM = None
SVG = "{http://www.w3.org/2000/svg}"
MOST_BYTES = 300_000  # of a recorded trace


def record(folder, *arguments):
    path = str(pathlib.Path(folder) / "t.fwtrace")
    subprocess.run(
        [PROGRAM, "trace", "--shape", "1,700,700,2,1,128", "--dtype", "bfloat16", "-o", path, *arguments],
        check=True, capture_output=True, env=os.environ | {"FLASHWOK_FAKE_CUDA": "stamps"})
    return path


def run(*arguments):
    """What the tool prints."""
    out = io.StringIO()
    sys.argv = ["draw_timeline.py", *map(str, arguments)]
    with contextlib.redirect_stdout(out):
        draw_timeline.main()
    return out.getvalue()


class Checks(unittest.TestCase):
    def check_trace(self, path):
        """Sound, whoever recorded it: in each track one thing after another, each tile once."""
        trace = fw_trace.read(path)
        self.assertEqual(trace.header["lost"], 0)
        for block in (b["block"] for b in trace.header["blocks"]):
            names = trace.tracks(block)
            self.assertTrue(any(e["track"] in names for e in trace.events))
            ends = {}
            for event in trace.events:
                self.assertGreaterEqual(event["t0"], ends.get(event["track"], 0), names)
                ends[event["track"]] = event["end"]
            tiles = {}
            for event in trace.events:
                name = names.get(event["track"], "")
                if name.startswith("consumer") and event["kind"] in ("softmax", "skip"):
                    tile = (name, event["head"], event["q_tile"], event["k_tile"])
                    tiles[tile] = tiles.get(tile, 0) + 1
            self.assertTrue(tiles)
            self.assertEqual(set(tiles.values()), {1})

    def check_picture(self, path, language, folder):
        svg = pathlib.Path(folder) / "t.svg"
        run(path, "-o", svg, "--lang", language)
        root = xml.parse(svg).getroot()
        width = float(root.get("viewBox").split()[2])
        rows = {}
        for box in root.iter(SVG + "rect"):
            if box.get("class") and box.get("height") == str(draw_timeline.LANE):
                self.assertIn(box.get("class"), {s.replace(" ", "") for s in draw_timeline.STYLES})
                rows.setdefault(box.get("y"), []).append((float(box.get("x")), float(box.get("width"))))
        self.assertGreater(len(rows), 10)
        for boxes in rows.values():
            for (x, w), (after, _) in zip(boxes, boxes[1:]):
                self.assertLess(x + w, after + 0.5)
            self.assertGreaterEqual(min(x for x, _ in boxes), draw_timeline.LEFT - 0.1)
            self.assertLess(max(x + w for x, w in boxes), width)
        return svg.read_text(encoding="utf-8")

    def check_shares(self, path):
        lines = run(path, "--shares").splitlines()
        self.assertEqual(lines[0].split("|")[2].strip(), "producer")
        for column in range(2, lines[0].count("|")):
            cells = (line.split("|")[column].strip() for line in lines[2:])
            total = sum(float(cell.removesuffix(" %")) for cell in cells if cell)
            self.assertAlmostEqual(total, 100, delta=1)


class Timeline(Checks):
    def test_an_emulated_one(self):
        with tempfile.TemporaryDirectory() as folder:
            for mask in ("none", "bottom_right"):
                path = record(folder, "--device", "cuda", "--causal", mask, "--blocks", "1,0")
                self.check_trace(path)
                self.check_shares(path)
                english = self.check_picture(path, "en", folder)
                self.assertRegex(english, r"Block 1 on SM 1")
                self.assertRegex(english, r">S \d<")
                chinese = self.check_picture(path, "zh", folder)
                self.assertIn("张量核心", chinese)
                self.assertIsNone(re.search(">[^<]*(consumer|producer|engine)", re.sub(
                    "<title>.*?</title>", "", chinese)))
                run(path, "-o", pathlib.Path(folder) / "0.svg", "--block", "0", "--steps", "2")

    def test_refusals(self):
        with tempfile.TemporaryDirectory() as folder:
            path = record(folder, "--device", "cuda")
            with self.assertRaisesRegex(SystemExit, "block 4 is not recorded"):
                run(path, "--block", "4", "-o", pathlib.Path(folder) / "x.svg")
            with self.assertRaisesRegex(SystemExit, "not of a GPU"):
                run(record(folder), "--shares")
            whole = pathlib.Path(path).read_bytes()
            for broken in (whole[:-1], b"NOTRACE1" + whole[8:]):
                with self.assertRaises(ValueError):
                    fw_trace.Trace(broken)


class Recorded(Checks):
    def test_examples(self):
        paths = sorted((ROOT / "examples" / "traces").glob("*.fwtrace"))
        if not paths:
            self.skipTest("none are recorded")
        for path in paths:
            with self.subTest(path.name), tempfile.TemporaryDirectory() as folder:
                self.assertLess(path.stat().st_size, MOST_BYTES)
                self.check_trace(path)
                self.check_shares(path)
                self.check_picture(path, "en", folder)
                self.assertIn("gpu", fw_trace.read(path).header["machine"])


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
