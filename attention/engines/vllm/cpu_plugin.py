"""The entry point `topocomm_cpu` of vLLM's general plug-ins."""

from __future__ import annotations

BACKEND = "attention.engines.vllm.cpu_backend.ContextParallelCPUBackend"


def register() -> None:
    """On the CPU put our attention backend in the place of vLLM's, which it is but for decode context parallelism.

    vLLM calls it in each of its processes, before models are made; nothing of the backend is imported yet.
    """
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if current_platform.is_cpu():
        register_backend(AttentionBackendEnum.CPU_ATTN, BACKEND)
