"""The plug-in of SGLang: what the entry point `topocomm` of `sglang.srt.plugins` calls in each of its processes."""

from __future__ import annotations

from importlib import import_module


def install() -> None:
    """Register a hook around each merge of decode context parallelism; SGLang applies them once all plug-ins have run.

    A function with other parameters than those we know stays as it is, with a warning.
    """
    from attention.engines.sglang.dcp_hooks import HOOKS, MODULE
    from attention.engines.substitution import misfit, say_once

    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        functions = import_module(MODULE)
    except ImportError as error:
        say_once(f"SGLang's merges stay as they are: {error}")
        return
    for name, hook in HOOKS.items():
        function = getattr(functions, name, None)
        fault = f"there is no {name}" if function is None else misfit(function, hook)
        if fault is not None:
            say_once(f"SGLang's {name} stays as it is: {fault}")
        else:
            HookRegistry.register(f"{MODULE}.{name}", hook, HookType.AROUND)
