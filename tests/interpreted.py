"""Import this before anything that imports triton: kernels then run in Triton's interpreter, on the CPU.

Only this process's kernels do: child processes, and what they compile, are as ever.
"""

import os

_before = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported

import triton.experimental.gluon  # noqa: E402, F401 else imported at the first launch, and confused by then
from triton.runtime.interpreter import InterpretedFunction as interpreted  # noqa: E402

import attention.gpu.decode_kernel  # noqa: E402
import attention.gpu.prefill  # noqa: E402
import attention.kernels.gpu_states  # noqa: E402, F401
import topocomm.operators.kernels.gpu_formulas  # noqa: E402
import topocomm.operators.kernels.gpu_kernel  # noqa: E402
import topocomm.operators.kernels.gpu_peer  # noqa: E402
import topocomm.operators.kernels.gpu_rows  # noqa: E402

if _before is None:
    del os.environ["TRITON_INTERPRET"]
else:
    os.environ["TRITON_INTERPRET"] = _before

assert topocomm.operators.kernels.gpu_floats.INTERPRETED.value, "a module imported triton's kernels before"
__all__ = ["interpreted"]
