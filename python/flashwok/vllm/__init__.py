"""FlashWok as an attention backend of vLLM.

vLLM finds `register` through the entry-point group ``vllm.general_plugins`` and calls it in each of
its processes. Nothing runs on FlashWok by that: ``--attention-backend CUSTOM`` asks for it.
"""

from __future__ import annotations

import warnings

__all__ = ["register"]

_PATH = "flashwok.vllm._backend.FlashWokBackend"


def register() -> None:
    """Puts FlashWok into vLLM's slot for a backend of others, `AttentionBackendEnum.CUSTOM`.

    A slot that another package has taken stays its own, with a warning; the environment variable
    VLLM_PLUGINS says whose plugins vLLM loads.

    Raises:
        ImportError: vLLM is missing, or has no such registry.
    """
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    slot = AttentionBackendEnum.CUSTOM
    if slot.is_overridden() and slot.get_path() != _PATH:
        warnings.warn(f"flashwok: vLLM's CUSTOM is {slot.get_path()} already", stacklevel=2)
        return
    register_backend(slot, _PATH)
