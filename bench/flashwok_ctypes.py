"""FlashWok's C interface (include/flashwok/c_api.h) through ctypes.

    library = Library("libflashwok.so")
    problem = library.problem(q=from_torch(q), k=from_torch(k), v=from_torch(v), softcap=30.0)
    run = library.forward(problem, library.execution(stream=stream), o=from_torch(o))
    run()  # raises Refused with the library's message

It needs no torch: tensor() describes any memory.
"""

import ctypes
from ctypes import (
    POINTER,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
    sizeof,
)

DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3", "float8_e5m2", "bool", "int32")
DEVICES = ("cpu", "cuda")
ALGORITHMS = ("auto", "standard", "v1", "v2", "v3")
CAUSAL_NONE, BOTTOM_RIGHT, TOP_LEFT = 0, 1, 2
FORWARD = 0
UNSUPPORTED = 2
MAX_RANK = 4
MESSAGE_SIZE = 1024


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_int32),
        ("rank", c_int32),
        ("shape", c_int64 * MAX_RANK),
        ("strides", c_int64 * MAX_RANK),
        ("device_type", c_int32),
        ("device_index", c_int32),
    )


class Problem(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("cu_seqlens_q", Tensor),
        ("cu_seqlens_k", Tensor),
        ("seqused_k", Tensor),
        ("page_table", Tensor),
        ("bias", Tensor),
        ("mask", Tensor),
        ("alibi_slopes", Tensor),
        ("q_descale", Tensor),
        ("k_descale", Tensor),
        ("v_descale", Tensor),
        ("softmax_scale", c_double),
        ("has_softmax_scale", c_int32),
        ("causal", c_int32),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("softcap", c_double),
        ("algorithm", c_int32),
        ("num_splits", c_int32),
        ("deterministic", c_int32),
        ("dropout_p", c_double),
        ("dropout_seed", c_uint64),
        ("dropout_offset", c_uint64),
    )


class ForwardOutput(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("o", Tensor),
        ("lse", Tensor),
        ("row_max", Tensor),
        ("row_sum", Tensor),
    )


class Execution(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
        ("workspace_limit", c_size_t),
        ("num_threads", c_int32),
        ("tile_q", c_int32),
        ("tile_kv", c_int32),
        ("kernel", c_char_p),
        ("observer", c_void_p),
        ("observer_data", c_void_p),
        ("stream", c_void_p),
        ("stop", c_void_p),
        ("stop_data", c_void_p),
    )


class PlanResult(ctypes.Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("rejections", c_void_p),
        ("rejections_capacity", c_size_t),
        ("num_rejections", c_size_t),
        ("kernel", c_char * 64),
        ("algorithm", c_int32),
        ("tile_q", c_int32),
        ("tile_kv", c_int32),
        ("num_splits", c_int32),
        ("num_threads", c_int32),
        ("workspace_bytes", c_size_t),
    )


# By their names in the header.
STRUCTS = {
    "flashwok_tensor": Tensor,
    "flashwok_problem": Problem,
    "flashwok_forward_output": ForwardOutput,
    "flashwok_execution": Execution,
    "flashwok_plan_result": PlanResult,
}


class Refused(RuntimeError):
    """A status that is not ok; `status` is its number."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status

    @property
    def unsupported(self):
        return self.status == UNSUPPORTED


def tensor(data, dtype, shape, strides=None, device="cpu", index=0):
    """A view of the memory at the address `data`; strides in elements, absent: row-major."""
    if strides is None:
        strides, step = [], 1
        for extent in reversed(shape):
            strides.insert(0, step)
            step *= extent
    made = Tensor(data, DTYPES.index(dtype), len(shape))
    made.shape[: len(shape)] = shape
    made.strides[: len(shape)] = strides
    made.device_type, made.device_index = DEVICES.index(device), index
    return made


def from_torch(x):
    dtype = str(x.dtype).removeprefix("torch.")
    return tensor(x.data_ptr(), dtype, x.shape, x.stride(), x.device.type, x.device.index or 0)


class Library:
    def __init__(self, path):
        self._lib = ctypes.CDLL(str(path))
        for name in ("problem", "forward_output", "execution", "plan_result"):
            struct = STRUCTS["flashwok_" + name]
            self._declare(f"flashwok_{name}_init", POINTER(struct), c_size_t)
        said = (c_char_p, c_size_t)
        inputs = (POINTER(Problem), POINTER(ForwardOutput), POINTER(Execution))
        self._declare("flashwok_forward", *inputs, *said)
        moved = (POINTER(c_int64), POINTER(c_int64))
        self._declare("flashwok_forward_bytes", *inputs, *moved, *said)
        plan = (POINTER(Problem), c_int32, POINTER(Execution), POINTER(PlanResult))
        self._declare("flashwok_plan", *plan, *said)
        self._lib.flashwok_version.restype = c_char_p

    def _declare(self, name, *arguments):
        function = getattr(self._lib, name)
        function.argtypes, function.restype = arguments, c_int32

    def _call(self, name, *arguments):
        message = ctypes.create_string_buffer(MESSAGE_SIZE)
        status = getattr(self._lib, name)(*arguments, message, MESSAGE_SIZE)
        if status:
            raise Refused(status, message.value.decode())

    def _new(self, name, **fields):
        made = STRUCTS["flashwok_" + name]()
        status = getattr(self._lib, f"flashwok_{name}_init")(byref(made), sizeof(made))
        if status:
            raise Refused(status, f"flashwok_{name}_init: the header is not of this library")
        known = {field[0] for field in made._fields_}
        for field, value in fields.items():
            if field not in known:
                raise TypeError(f"flashwok_{name} has no {field}")
            setattr(made, field, value)
        return made

    def version(self):
        return self._lib.flashwok_version().decode()

    def problem(self, **fields):
        return self._new("problem", **fields)

    def execution(self, **fields):
        return self._new("execution", **fields)

    def plan(self, problem, execution):
        """The kernel that forward would run, and its scratch."""
        result = self._new("plan_result")
        self._call("flashwok_plan", byref(problem), FORWARD, byref(execution), byref(result))
        return result

    def forward_bytes(self, problem, execution, **outputs):
        """(read, written) of forward by the formula of its algorithm and tiles."""
        output = self._new("forward_output", **outputs)
        read, written = c_int64(), c_int64()
        moved = (byref(read), byref(written))
        self._call(
            "flashwok_forward_bytes", byref(problem), byref(output), byref(execution), *moved
        )
        return read.value, written.value

    def forward(self, problem, execution, **outputs):
        """What runs it when called; outputs: o, and what else the struct has."""
        output = self._new("forward_output", **outputs)
        message = ctypes.create_string_buffer(MESSAGE_SIZE)
        function = self._lib.flashwok_forward
        pointers = (byref(problem), byref(output), byref(execution), message, MESSAGE_SIZE)

        def run():
            status = function(*pointers)
            if status:
                raise Refused(status, message.value.decode())

        return run
