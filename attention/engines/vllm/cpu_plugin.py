"""The entry point `topocomm_cpu` of vLLM's general plug-ins."""

from __future__ import annotations

import logging
from importlib import import_module

MODULE, BACKEND = "attention.engines.vllm.cpu_backend", "ContextParallelCPUBackend"
TESTED = "0.32"
"""The version of vLLM that the backend was tried with."""


def register() -> None:
    """On the CPU put our attention backend in the place of vLLM's, which it is but for decode context parallelism.

    vLLM calls it in each of its processes, before models are made. A vLLM that lacks what the backend is derived from
    keeps its own, and a line in its log says so.
    """
    from vllm import __version__
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if not current_platform.is_cpu():
        return
    try:
        import_module(MODULE)
    except ImportError as error:
        logging.getLogger("vllm.topocomm").warning(
            "topocomm: decode context parallelism on the CPU is for vLLM %s; vLLM %s keeps its own attention (%s)",
            TESTED,
            __version__,
            error,
        )
        return
    register_backend(AttentionBackendEnum.CPU_ATTN, f"{MODULE}.{BACKEND}")
