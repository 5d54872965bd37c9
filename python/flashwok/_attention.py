"""Attention of any array library: `attention` and its companions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _arrays, _core
from ._call import Call, new_output, refuse_arrays, window_pair

if TYPE_CHECKING:
    from ._arrays import Array
    from ._call import Algorithm, Causal


def _seed(dropout_p: float, dropout_seed: int | None) -> int:
    if dropout_seed is None and dropout_p:
        raise ValueError(f"dropout_seed: is None, must be given: dropout_p is {dropout_p}")
    return dropout_seed or 0


def _refuse(library: str, **given: int | None) -> None:
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name}: is {value}, must be left out: {library} decides it")


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: Causal = "none",
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    bias: Array | None = None,
    mask: Array | None = None,
    alibi_slopes: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqused_k: Array | None = None,
    page_table: Array | None = None,
    q_descale: Array | None = None,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    num_splits: int = 0,
    deterministic: bool = False,
    out_dtype: str | None = None,
    num_threads: int = 0,
    stream: int | None = None,
    algorithm: Algorithm = "auto",
    return_lse: bool = False,
) -> Any:
    """Exact attention, O = softmax(mask(softmax_scale * Q K^T)) V.

    Arrays come from numpy, torch, jax, cupy or any library of the array API, by DLPack and without
    a copy; the result is of the same library, on the same device. Any strides are taken whose
    innermost one is 1; an axis of stride 0 is broadcast. torch tensors are differentiable, as
    `flashwok.torch.attention`; jax arrays as well, as `flashwok.jax.attention`.

    Scores, in this order: ``s = softmax_scale * q.k``, softcap, + bias and ALiBi, mask (causal,
    window, boolean, key lengths), softmax. A row that sees no key gives 0, and an lse of -inf.

    Args:
        q: ``[batch, seqlen_q, num_heads, head_dim]``; varlen: ``[total_q, num_heads, head_dim]``.
            float32, float16, bfloat16, or float8 (e4m3fn, e5m2).
        k: ``[batch, seqlen_k, num_heads_kv, head_dim]``; varlen: ``[total_k, num_heads_kv,
            head_dim]``; paged: ``[num_pages, page_size, num_heads_kv, head_dim]``. num_heads is a
            multiple of num_heads_kv.
        v: as k, with head_dim_v.
        causal: ``"bottom_right"``: row i sees keys j <= i + seqlen_k - seqlen_q; ``"top_left"``:
            j <= i; ``"none"``.
        window: keys to the left and right of the diagonal that a row sees, inclusive; -1 is no
            limit.
        softmax_scale: any finite number; None: 1 / sqrt(head_dim).
        softcap: scores become softcap * tanh(s / softcap); 0: off.
        bias: added to the scores; float32 or q's dtype ``[batch, num_heads, seqlen_q, seqlen_k]``,
            each of the first three may be 1.
        mask: bool of that shape; a key is kept where it is true.
        alibi_slopes: float32 ``[num_heads]`` or ``[batch, num_heads]``; adds
            -slope * abs(i + seqlen_k - seqlen_q - j).
        cu_seqlens_q, cu_seqlens_k: int32 ``[batch + 1]``: sequence b owns rows cu_seqlens[b] to
            cu_seqlens[b + 1].
        seqused_k: int32 ``[batch]``: only the first seqused_k[b] keys exist.
        page_table: int32 ``[batch, max_pages]``: the page of each page_size keys.
        q_descale, k_descale, v_descale: float32 ``[batch, num_heads_kv]``: what float8 values are
            multiplied by.
        dropout_p, dropout_seed, dropout_offset: Philox4x32-10; the same three numbers drop the
            same scores, forward and backward, on every device. Without a seed torch draws one;
            elsewhere dropout needs it.
        num_splits: of the keys; 0: chosen.
        deterministic: the backward pass gives the same bits each time.
        out_dtype: of the result, by name: q's dtype or float32, for float8 bfloat16, float16 or
            float32; None: q's dtype, bfloat16 for float8.
        num_threads: of the CPU; 0: as many cores as the work is worth.
        stream: of CUDA, in DLPack's numbers; None: the one that q's library uses now.
        algorithm: ``"standard"``, ``"v1"``, ``"v2"`` or ``"v3"``; ``"auto"`` takes the quickest
            that can run.
        return_lse: also return lse, the natural log of the sum of exponentials, float32
            ``[batch, num_heads, seqlen_q]``; varlen: ``[num_heads, total_q]``.

    Returns:
        o ``[batch, seqlen_q, num_heads, head_dim_v]`` (varlen: ``[total_q, ...]``), or (o, lse).

    Raises:
        ValueError: an argument breaks the contract; the message names it, its value and the limit.
        TypeError: an array of a wrong kind or dtype.
        NotImplementedError: valid, but no kernel of this device runs it; the message says why.
        MemoryError: the scratch memory is more than allowed, or than there is.
        RuntimeError: a failure of the system below, such as CUDA's.

    Source: `Forward` in ``include/flashwok/attention.h``; V1 arXiv:2205.14135, V2
    arXiv:2307.08691, V3 arXiv:2407.08608.

    >>> import numpy as np
    >>> import flashwok
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 5, 2, 8), dtype=np.float32)
    >>> o, lse = flashwok.attention(q, k, v, causal="bottom_right", return_lse=True)
    >>> o.shape, lse.shape
    ((1, 5, 2, 8), (1, 2, 5))
    >>> bool(np.allclose(o[:, 0], v[:, 0]))  # the first row sees the first key alone
    True
    """
    tensors: Any = (
        bias,
        mask,
        alibi_slopes,
        cu_seqlens_q,
        cu_seqlens_k,
        seqused_k,
        page_table,
        q_descale,
        k_descale,
        v_descale,
    )
    scalars = (
        softmax_scale,
        causal,
        *window_pair(window),
        softcap,
        dropout_p,
        dropout_offset,
        num_splits,
        deterministic,
        algorithm,
    )
    if _arrays.is_torch(q) or _arrays.is_jax(q):
        library = "torch" if _arrays.is_torch(q) else "jax"
        if num_threads or stream is not None:
            _refuse(library, num_threads=num_threads or None, stream=stream)
        if library == "torch":
            from .torch import _ops as face
        else:
            from .jax import _ffi as face  # type: ignore[no-redef]
        o, lse = face.attention(q, k, v, tensors, scalars, dropout_seed, out_dtype)
        return (o, lse) if return_lse else o
    seed = _seed(dropout_p, dropout_seed)
    try:
        o, lse = new_output(q, v, cu_seqlens_q is not None, out_dtype)
    except Exception:
        refuse_arrays(q=q, k=k, v=v)
        raise
    _core.attend(q, k, v, tensors, o, lse, scalars, seed, num_threads, 0, stream, False)
    return (o, lse) if return_lse else o


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    causal: Causal = "none",
    window: tuple[int, int] = (-1, -1),
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    bias: Array | None = None,
    mask: Array | None = None,
    alibi_slopes: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    seqused_k: Array | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int | None = None,
    dropout_offset: int = 0,
    deterministic: bool = False,
    num_threads: int = 0,
    stream: int | None = None,
    algorithm: Algorithm = "auto",
    return_dbias: bool = False,
) -> tuple[Array, ...]:
    """The gradients of `attention` for q, k and v, and of the bias where it is asked for.

    Args:
        dout: the gradient that arrives at o, of its shape.
        q, k, v: as given to `attention`, like the options.
        o, lse: as `attention` returned them.
        dlse: the gradient that arrives at lse, if any.
        return_dbias: also return the gradient of the bias, of its shape; broadcast axes are summed.
            It is float32, in jax of the bias's dtype.

    Returns:
        (dq, dk, dv) in the shapes and dtypes of q, k and v, or (dq, dk, dv, dbias).

    Raises:
        The same as `attention`.

    Source: `Backward` in ``include/flashwok/attention.h``.

    >>> import numpy as np
    >>> import flashwok
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 5, 2, 8), dtype=np.float32)
    >>> o, lse = flashwok.attention(q, k, v, return_lse=True)
    >>> dq, dk, dv = flashwok.attention_backward(np.ones_like(o), q, k, v, o, lse)
    >>> bool(np.allclose(dv.sum(1), 5))  # the weights of a row add up to one
    True
    """
    if return_dbias and bias is None:
        raise ValueError("return_dbias: is True, must be False without a bias")
    tensors = {
        "bias": bias,
        "mask": mask,
        "alibi_slopes": alibi_slopes,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_k": seqused_k,
    }
    options: dict[str, Any] = {
        "causal": causal,
        "window": window,
        "softmax_scale": softmax_scale,
        "softcap": softcap,
        "dropout_p": dropout_p,
        "dropout_seed": _seed(dropout_p, dropout_seed),
        "dropout_offset": dropout_offset,
        "deterministic": deterministic,
        "algorithm": algorithm,
    }
    if _arrays.is_jax(q):
        _refuse("jax", num_threads=num_threads or None, stream=stream)
        from .jax import _ffi

        given = {"q": q, "k": k, "v": v, **tensors}
        gradients = _ffi.backward(dout, o, lse, dlse, given, **options)
        wanted = ["q", "k", "v", "bias"] if return_dbias else ["q", "k", "v"]
        return tuple(gradients[name] for name in wanted)
    call = Call(q, k, v, {**tensors, **options, "num_threads": num_threads, "stream": stream})
    names = {"dq": "q", "dk": "k", "dv": "v"}
    results = {result: call.new_like(name) for result, name in names.items()}
    if return_dbias:
        results["dbias"] = call.new_like("bias", "float32")
    inputs = call.views(o=o, lse=lse, dout=dout, dlse=dlse)
    _core.backward(call.tensors, call.options, inputs, call.views(**results), call.run)
    return tuple(results.values())


def merge_states(
    o_a: Array, lse_a: Array, o_b: Array, lse_b: Array, *, stream: int | None = None
) -> tuple[Array, Array]:
    """Joins the results of attention over two sets of keys that have none in common.

    Exact and associative; the empty state is (o = 0, lse = -inf). On the CPU or on one CUDA device.

    Args:
        o_a, o_b: ``[batch, seqlen_q, num_heads, head_dim_v]``, float32, float16 or bfloat16.
        lse_a, lse_b: float32 ``[batch, num_heads, seqlen_q]``.
        stream: a CUDA stream, as an integer; None: the library's current one.

    Returns:
        (o, lse) over both sets, o in the dtype of o_a.

    Raises:
        ValueError: shapes, dtypes or devices that do not fit.
        NotImplementedError: a device that the build has no code for.

    Source: `MergeStates` in ``include/flashwok/attention.h``; the merge is that of V2's split keys.

    >>> import numpy as np
    >>> import flashwok
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 6, 2, 8), dtype=np.float32)
    >>> a = flashwok.attention(q, k[:, :4], v[:, :4], return_lse=True)
    >>> b = flashwok.attention(q, k[:, 4:], v[:, 4:], return_lse=True)
    >>> o, lse = flashwok.merge_states(*a, *b)
    >>> bool(np.allclose(o, flashwok.attention(q, k, v), atol=1e-6))
    True
    """
    given = {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b}
    if _arrays.is_jax(o_a):
        from .jax import _ffi

        _refuse("jax", stream=stream)
        return _ffi.merge(given)
    if stream is None:
        stream = _arrays.current_stream(o_a)
    o = _arrays.empty(o_a, o_a.shape)
    lse = _arrays.empty(o_a, lse_a.shape, "float32")
    views = {
        name: _arrays.view(a, name, stream) for name, a in (given | {"o": o, "lse": lse}).items()
    }
    _core.merge_states(**views, run={"stream": stream})
    return o, lse


def quantize_fp8(
    x: Array, *, num_heads_kv: int | None = None, dtype: str = "float8_e4m3fn"
) -> tuple[Array, Array]:
    """float8 values and their descale: x = values * descale, up to rounding. On the CPU.

    Each batch and key head has one scale, which makes the largest finite magnitude of its heads the
    largest of the dtype.

    Args:
        x: ``[batch, seqlen, num_heads, head_dim]``, float32, float16 or bfloat16.
        num_heads_kv: heads of k and v, where x is q; None: as many as x has.
        dtype: ``"float8_e4m3fn"`` or ``"float8_e5m2"``.

    Returns:
        (values of x's shape, descale float32 ``[batch, num_heads_kv]``), for `attention` with
        q_descale, k_descale or v_descale.

    Raises:
        ValueError: num_heads_kv that does not divide the heads of x, and the like.
        NotImplementedError: x is not on the CPU.
        ImportError: numpy's arrays need ml_dtypes for float8.

    Source: `QuantizeFloat8` in ``include/flashwok/attention.h``.

    >>> import numpy as np
    >>> import flashwok
    >>> q = np.random.default_rng(0).standard_normal((1, 5, 4, 8), dtype=np.float32)
    >>> values, descale = flashwok.quantize_fp8(q, num_heads_kv=2)
    >>> values.dtype.name, descale.shape
    ('float8_e4m3fn', (1, 2))
    """
    heads = num_heads_kv
    if heads is None:
        heads = x.shape[2] if len(x.shape) > 2 else 1
    values = _arrays.empty(x, x.shape, dtype)
    descale = _arrays.empty(x, (x.shape[0], heads), "float32")
    stream = _arrays.current_stream(x)
    given = {"x": x, "values": values, "descale": descale}
    _core.quantize_float8(**{name: _arrays.view(a, name, stream) for name, a in given.items()})
    return _arrays.returned(x, values), _arrays.returned(x, descale)
