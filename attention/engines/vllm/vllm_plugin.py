"""The plug-in of vLLM: what the entry point `topocomm` of `vllm.general_plugins` calls in each of its processes."""

from __future__ import annotations


def register() -> None:
    """Put our subclasses in the place of vLLM's backends that know decode context parallelism.

    Without it they are vLLM's own in all they do. Safe to call again; backends that another plug-in has replaced stay.
    Where vLLM is another than we know, a warning says so: a plug-in that raises would end the engine.
    """
    from attention.engines.vllm import dcp_backends

    try:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend
    except ImportError as error:
        from attention.engines.substitution import say_once

        say_once(f"vLLM's backends stay as they are: {error}")
        return
    known = AttentionBackendEnum.__members__
    for name in (*dcp_backends.BY_IMPLEMENTATION, *dcp_backends.BY_LAYER):
        if name in known and not known[name].is_overridden():
            register_backend(known[name], f"{dcp_backends.__name__}.{name}")
