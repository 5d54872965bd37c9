#!/usr/bin/env python3
"""Writes the seeds of the reader fuzzers, small files of every form, to tests/fuzz/corpus/."""

import io
import json
import pathlib
import struct
import zipfile

CORPUS = pathlib.Path(__file__).resolve().parent.parent / "tests" / "fuzz" / "corpus"


def npy(descr, shape, data, fortran=False, version=1):
    header = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n".encode()
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def npz(entries, method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def safetensors(tensors, metadata=None):
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, dtype, shape, content in tensors:
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + data


def seeds():
    floats = struct.pack("<6f", 0, 1, -2, 3.5, float("inf"), float("nan"))
    arrays = {
        "float32": npy("<f4", (2, 3), floats),
        "float32_big": npy(">f4", (2, 3), floats),
        "float32_fortran": npy("<f4", (2, 3), floats, fortran=True),
        "float16_v2": npy("<f2", (2, 2), bytes(range(8)), version=2),
        "bool_v3": npy("|b1", (4,), b"\0\1\1\0", version=3),
        "int32": npy("<i4", (3,), struct.pack("<3i", 1, -1, 7)),
        "int64_big": npy(">i8", (2,), struct.pack(">2q", 5, -5)),
        "int64_large": npy("<i8", (1,), struct.pack("<q", 1 << 40)),
        "empty": npy("<f4", (0, 3), b""),
        "rank4": npy("<f2", (1, 2, 1, 2), bytes(8), fortran=True),
        "scalar": npy("<f4", (), floats[:4]),
        "float64": npy("<f8", (1,), bytes(8)),
        "object": npy("|O", (1,), b"\x80\x04K\x01."),
        "huge": npy("<f4", (1 << 40, 1 << 40), b""),
    }
    pair = [("q.npy", arrays["float32"]), ("k.npy", npy("<f4", (64, 8), bytes(2048)))]
    tensors = [
        ("q", "F32", [2, 3], floats),
        ("k", "BF16", [2, 2], bytes(range(8))),
        ("lengths", "I64", [2], struct.pack("<2q", 3, 4)),
        ("scale", "F8_E4M3", [3], b"\x38\x40\x48"),
        ("mask", "BOOL", [1, 1, 2, 1], b"\1\0"),
        ("none", "F16", [0, 4], b""),
        ("grade", "F8_E5M2", [1], b"\x3c"),
        ("index", "I32", [1], struct.pack("<i", 9)),
    ]
    yield from ((f"npy/{name}", content) for name, content in arrays.items())
    yield "npz/stored", npz(pair, zipfile.ZIP_STORED)
    yield "npz/deflated", npz(pair, zipfile.ZIP_DEFLATED)
    yield "npz/single", npz([("x.npy", arrays["int64_big"])], zipfile.ZIP_DEFLATED)
    yield "npz/none", npz([], zipfile.ZIP_STORED)
    yield "npz/not_npy", npz([("a.txt", b"words")], zipfile.ZIP_STORED)
    yield "safetensors/all", safetensors(tensors, {"origin": "a seed"})
    yield "safetensors/single", safetensors(tensors[:1])
    yield "safetensors/none", safetensors([])
    yield "safetensors/float64", safetensors([("d", "F64", [1], bytes(8))])


for path, content in seeds():
    target = CORPUS / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
