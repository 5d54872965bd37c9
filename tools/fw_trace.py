"""Reads fw-trace/1 (docs/trace.md), by its own description."""

import json
import struct

CODES = {"i64": "q", "i32": "i", "u8": "B"}


class Trace:
    """`header` as it is; `events`, a dict each, with the names of kind and tensor and `end`."""

    def __init__(self, data):
        if data[:8] != b"FWTRACE1":
            raise ValueError("not fw-trace/1")
        (length,) = struct.unpack_from("<Q", data, 8)
        self.header = json.loads(data[16 : 16 + length])
        fields = [(f["name"], "<" + CODES[f["type"]], f["offset"]) for f in self.header["fields"]]
        size = self.header["event_bytes"]
        if len(data) != 16 + length + size * self.header["events"]:
            raise ValueError(f"{len(data)} bytes are not those of the events")
        self.events = [
            self._event({n: struct.unpack_from(code, data, at + o)[0] for n, code, o in fields})
            for at in range(16 + length, len(data), size)
        ]

    def _event(self, event):
        event["kind"] = self.header["kinds"][event["kind"]]
        event["tensor"] = self.header["tensors"][event["tensor"]]
        event["end"] = event["t0"] + event["duration"]
        for name, bit in self.header["flags"].items():
            event[name] = bool(event["flags"] & bit)
        return event

    def tracks(self, block):
        """Names of the tracks of a block of a GPU's grid, by their ids, without the block's."""
        start = f"block {block}: "
        return {
            t["id"]: t["name"].removeprefix(start)
            for t in self.header["tracks"]
            if t.get("block") == block
        }


def read(path):
    with open(path, "rb") as file:
        return Trace(file.read())
