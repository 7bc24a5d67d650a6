"""Import this before anything that imports triton: kernels then run in Triton's interpreter, on the CPU.

Only this process's kernels do: child processes, and what they compile, are as ever.
"""

import os
import threading
from dataclasses import replace
from types import SimpleNamespace

_before = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported

import triton.experimental.gluon  # noqa: E402, F401 else imported at the first launch, and confused by then
import triton.language as tl  # noqa: E402
from triton.runtime import interpreter  # noqa: E402
from triton.runtime.interpreter import InterpretedFunction as interpreted  # noqa: E402

import attention.gpu.decode.decode_kernel  # noqa: E402
import attention.gpu.gpu_merge  # noqa: E402
import attention.gpu.prefill.prefill_kernel  # noqa: E402, F401
import topocomm.operators.kernels.gpu_formulas  # noqa: E402  # noqa: E402
import topocomm.operators.kernels.gpu_kernel  # noqa: E402
import topocomm.operators.kernels.gpu_peer  # noqa: E402

if _before is None:
    del os.environ["TRITON_INTERPRET"]
else:
    os.environ["TRITON_INTERPRET"] = _before

assert topocomm.operators.kernels.gpu_tiles.INTERPRETED.value, "a module imported triton's kernels before"
__all__ = ["interpreted"]


class _Launches:
    """What launches replace in triton.language, replaced by the first of those under way and restored by the last.

    Triton does so at every launch, and again at every call of a function in it, for nothing: half of the time that it
    takes.
    """

    def __init__(self):
        self._lock, self._under_way, self._scope = threading.Lock(), 0, None
        self._patch = interpreter._patch_lang
        self._language = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})

    def begin(self, kernel):
        """In place of `_patch_lang`, which a launch calls; what it returns is told when the launch is over."""
        with self._lock:
            if not self._under_way:
                self._scope = self._patch(self._language)
            self._under_way += 1
        return SimpleNamespace(restore=self._end)

    def _end(self):
        with self._lock:
            self._under_way -= 1
            if not self._under_way:
                self._scope.restore()

    def call(self, function, *args, **options):
        """In place of a function's `__call__`."""
        assert self._under_way, "functions of kernels are called in launches"
        return function.rewrite()(*args, **options)


_launches = _Launches()
interpreter._patch_lang = _launches.begin
interpreted.__call__ = lambda self, *args, **options: _launches.call(self, *args, **options)
# Sums of integers are checked for overflow by several operations each, and what they find is told to nobody.
interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
