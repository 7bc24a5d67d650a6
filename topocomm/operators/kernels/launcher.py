"""Triton kernels compiled and loaded by one thread at a time, and launched as they were compiled.

Ranks may be threads of one process. Triton gives a kernel that another thread is loading away before its function is
there (triton-lang/triton#11518), and with Triton 3.9 the second of two that were compiled alike replaces the first,
whose module is unloaded while it may be running. So compiling and loading is under one lock of the process. No launch
is: a launch may wait for room in a queue of the GPU, and so for another rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import import_module
from threading import Lock
from typing import Any

Grid = tuple[int, ...]
Launch = Callable[..., None]

DIVISOR = 16
"""By which Triton asks whether integers and addresses can be divided; those that are compile to wider loads."""
INT32_END, INT64_END = 1 << 31, 1 << 63
"""Integers from here on are wider: of 64 bits, of 64 bits without a sign."""
_loading = Lock()
_loaded: dict[Any, Launch] = {}
"""Compiled kernels by launch key."""
_known: dict[int, tuple[tuple[bool, ...], Any]] = {}
"""By the id of a kernel: of every parameter whether it is compiled for an integer's width alone; and the kernel, which
is kept so that the id stays its own."""


def launcher(kernel: Any, grid: Grid) -> Launch:
    """What launches a Triton kernel on the current device and stream, as `kernel[grid]` does.

    The first launch for arguments of a kind compiles and loads; the others ask Triton nothing.

    Args:
        kernel: A `@triton.jit` function; anything else is launched by `kernel[grid]`, as Triton's interpreter is.
        grid: One to three numbers of programs.

    Returns:
        A function of the kernel's arguments: the first ones by position, constants and options (num_warps) by name.
    """
    return partial(_launch, kernel, grid) if _is_compiled(kernel) else kernel[grid]


def load_kernel(kernel: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Launch:
    """Compile and load a Triton kernel for the current device, without a launch.

    Loading may wait until the device is through with everything: let no kernel there wait for another rank meanwhile.

    Args:
        kernel: As `launcher`.
        args: The first arguments of a launch.
        options: The others, and options, by name.

    Returns:
        launch(grid, *args), for arguments like these: integers and addresses are 1, divisible by 16 or neither as here.
    """
    compiled = compile_kernel(kernel, args, options) if _is_compiled(kernel) else None
    if compiled is None:
        return lambda grid, *arguments: kernel[grid](*arguments, **options)
    constants = tuple(options[name] for name in kernel.arg_names[len(args) :])

    def launch(grid: Grid, *arguments: Any) -> None:
        compiled[(*grid, 1, 1)[:3]](*arguments, *constants)

    return launch


def compile_kernel(kernel: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """Compile and load a Triton kernel for the current device, and return Triton's `CompiledKernel`.

    Once it is loaded it says what it takes: `n_regs` registers a thread, `metadata.shared` bytes of shared memory.

    Args:
        kernel: A `@triton.jit` function.
        args: The first arguments of a launch; dtypes of torch stand for aligned tensors.
        options: The others, and options, by name.

    Returns:
        The kernel; None where a hook of the program (`triton.knobs.runtime.jit_cache_hook`) has compiled it elsewhere.
    """
    with _loading:
        compiled = kernel.warmup(*args, grid=(1,), **options)
        if compiled is not None:
            compiled[1, 1, 1]  # loads it
        return compiled


def on_device(x: Any) -> AbstractContextManager[Any]:
    """Make the GPU of a torch tensor the current one of this thread; do nothing for host memory."""
    import torch

    return torch.cuda.device(x.device) if x.device.type == "cuda" else nullcontext()


def _launch(kernel: Any, grid: Grid, *args: Any, **options: Any) -> None:
    number = id(kernel)
    known = _known.get(number)
    if known is None:
        known = _known[number] = tuple(bool(parameter.do_not_specialize) for parameter in kernel.params), kernel
    width_only, _ = known
    kinds = map(_kind, args, width_only)
    key = (number, _driver().active.get_current_device(), tuple(options), *options.values(), *kinds)
    launch = _loaded.get(key)
    if launch is None:
        launch = _loaded.setdefault(key, load_kernel(kernel, args, options))
    launch(grid, *args)


def _kind(x: Any, width_only: bool) -> Any:
    """Return the launch key: arguments of equal keys share one compiled kernel."""
    kind = type(x)
    if kind is int:
        width = (-INT32_END <= x < INT32_END) + (x < INT64_END)
        return width if width_only else (width, x == 1, x % DIVISOR == 0)
    if kind is float or kind is bool or x is None:
        return kind
    if kind is tuple:
        return tuple([_kind(item, width_only) for item in x])
    if hasattr(x, "data_ptr"):  # for AMD's GPUs Triton asks whether 32-bit offsets reach all of a tensor's memory
        is_near = _on_amd() and hasattr(x, "untyped_storage") and x.untyped_storage().nbytes() < INT32_END
        return x.dtype, x.data_ptr() % DIVISOR == 0, is_near
    return x


def _is_compiled(kernel: Any) -> bool:
    return isinstance(kernel, _compiled_type())


_driver = cache(lambda: import_module("triton.runtime").driver)
_compiled_type = cache(lambda: import_module("triton.runtime").JITFunction)
_on_amd = cache(lambda: import_module("torch").version.hip is not None)
