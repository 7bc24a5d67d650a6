"""The plug-in of vLLM: what the entry point `topocomm` of `vllm.general_plugins` calls in each of its processes."""

from __future__ import annotations


def register() -> None:
    """Put our subclasses in the place of vLLM's backends that know decode context parallelism.

    Without it they are vLLM's own in all they do. Safe to call again. A vLLM whose functions have other parameters
    than those we know keeps its own, with a warning: a plug-in that raises would end the engine.
    """
    from attention.engines.substitution import misfit, say_once

    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
        from vllm.v1.attention.ops import dcp
    except ImportError as error:
        say_once(f"vLLM's backends stay as they are: {error}")
        return
    from attention.engines.vllm import dcp_backends
    from attention.engines.vllm.dcp_combine import PARAMETERS, REPLACED

    for name in REPLACED:
        fault = misfit(getattr(dcp, name), PARAMETERS) if hasattr(dcp, name) else f"there is no {name}"
        if fault is not None:
            say_once(f"vLLM's backends stay as they are: {fault}")
            return
    known = AttentionBackendEnum.__members__
    for name in (*dcp_backends.BY_IMPLEMENTATION, *dcp_backends.BY_LAYER):
        if name in known and not known[name].is_overridden():
            register_backend(known[name], f"{dcp_backends.__name__}.{name}")
