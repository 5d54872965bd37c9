"""Arrays of the caller's library: seen by the core without a copy, and made anew for results."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

from . import _core

# Any object with __dlpack__ and __dlpack_device__: of numpy, torch, jax, cupy, the array API.
Array: TypeAlias = Any

# The core's names beside those of the libraries, where they differ.
_TO_CORE = {"float8_e4m3fn": "float8_e4m3"}
_FROM_CORE = {core: name for name, core in _TO_CORE.items()}
# What DLPack has no words for in some libraries: handed over as integers of their size.
_AS_INTEGERS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def is_torch(array: Array) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_jax(array: Array) -> bool:
    """Whether it is jax's, concrete or traced."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def is_numpy(array: Array) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(array, numpy.ndarray)


def is_cupy(array: Array) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(array, cupy.ndarray)


def dtype_name(array: Array) -> str:
    """The core's name of its dtype: "float32", "bfloat16", ..."""
    dtype = array.dtype
    name = str(getattr(dtype, "name", None) or dtype).rpartition(".")[2]
    return _TO_CORE.get(name, name)


@functools.cache
def _torch_dtypes() -> dict[Any, str]:
    """The core's names of torch's dtypes."""
    torch = sys.modules["torch"]
    names = ("float32", "float16", "bfloat16", "bool", "int32")
    return {getattr(torch, name): name for name in names}


def _view_numpy(array: Array, name: str) -> _core.Array:
    """By its pointer: an array that numpy itself cannot or will not hand over."""
    size = array.dtype.itemsize
    if any(stride % size for stride in array.strides):
        raise ValueError(f"{name}: its strides are no whole numbers of elements")
    pointer, read_only = array.__array_interface__["data"]
    strides = [stride // size for stride in array.strides]
    dtype = dtype_name(array)
    return _core.Array.from_pointer(pointer, dtype, array.shape, strides, read_only, array, name)


def view(array: Array, name: str, stream: int | None = None) -> _core.Array:
    """The array for the core, with nothing copied; `name` is what errors call it."""
    if is_numpy(array):
        if str(array.dtype) in _AS_INTEGERS:
            return _view_numpy(array, name)
        try:
            return _core.Array.from_dlpack(array, name)
        except BufferError:  # older numpys do not hand over what is read-only
            if not array.dtype.isnative or array.flags.writeable:
                raise
            return _view_numpy(array, name)
    if is_torch(array) and array.device.type in ("cpu", "cuda"):
        # What its DLPack says, many times sooner. It is used on torch's own stream.
        index = array.device.index if array.device.type == "cuda" else -1
        pointer, strides = array.data_ptr(), array.stride()
        dtype = _torch_dtypes().get(array.dtype) or dtype_name(array)
        return _core.Array.from_pointer(
            pointer, dtype, array.shape, strides, False, array, name, index
        )
    return _core.Array.from_dlpack(array, name, stream)


def empty(like: Array, shape: Sequence[int], dtype: str | None = None) -> Array:
    """A new array of `like`'s library on its device; `dtype`: the core's name; None: `like`'s."""
    library_name = None if dtype is None else _FROM_CORE.get(dtype, dtype)
    if is_numpy(like) or is_jax(like):  # jax's arrays cannot be written: see `returned`
        import numpy

        if library_name in _AS_INTEGERS:
            import ml_dtypes  # numpy itself has none of them

            return numpy.empty(shape, getattr(ml_dtypes, library_name))
        return numpy.empty(shape, library_name or like.dtype)
    if is_torch(like):
        torch = sys.modules["torch"]
        torch_dtype = getattr(torch, library_name) if library_name else like.dtype
        return torch.empty(tuple(shape), dtype=torch_dtype, device=like.device)
    library = namespace(like)
    array_dtype = getattr(library, library_name) if library_name else like.dtype
    if is_cupy(like):  # whose functions know no device, but work on the current one
        with like.device:
            return library.empty(tuple(shape), dtype=array_dtype)
    return library.empty(tuple(shape), dtype=array_dtype, device=like.device)


def returned(like: Array, array: Array) -> Array:
    """What `empty` made and the core has filled, as an array of `like`'s library."""
    return sys.modules["jax"].numpy.asarray(array) if is_jax(like) else array


def namespace(array: Array) -> Any:
    """The array-API module of an array that is not numpy's or torch's."""
    if is_cupy(array):  # not all of its versions have the method
        return sys.modules["cupy"]
    if not hasattr(array, "__array_namespace__"):
        kind = type(array).__name__
        raise TypeError(f"is a {kind}, must be an array of numpy, torch, jax or the array API")
    return array.__array_namespace__()


def current_stream(array: Array) -> int | None:
    """The CUDA stream on which its library works now, in DLPack's numbers; None on the CPU."""
    if is_torch(array):
        if array.device.type != "cuda":
            return None
        stream: int = sys.modules["torch"].cuda.current_stream(array.device).cuda_stream
        return stream or 1
    if is_cupy(array):
        return sys.modules["cupy"].cuda.get_current_stream().ptr or 1
    if hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] == 2:
        return 1
    return None
