"""Import this before anything that imports triton: kernels then run in Triton's interpreter, on the CPU.

Only this process's kernels do: child processes, and what they compile, are as ever.
"""

import math
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

_before = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel's module is imported

import triton.experimental.gluon  # noqa: E402, F401 else imported at the first launch, and confused by then
import triton.language as tl  # noqa: E402
from triton.language.semantic import TritonSemantic  # noqa: E402
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


class _Types:
    """Shapes and types of values, made once for each shape: the interpreter makes them anew for every operation."""

    def __init__(self):
        self._make_block, self._make_tensor = tl.block_type.__init__, tl.tensor.__init__
        self._broadcast, self._np_dtype = TritonSemantic.broadcast_impl_value, interpreter._get_np_dtype
        self._unwrap, self._plain = tl.core._unwrap_if_constexpr, {tl.tensor, tl.dtype, tl.block_type, int, type(None)}
        self._blocks, self._shapes, self._common, self._np_dtypes = {}, {(): (tl.constexpr(1), tl.tuple(()))}, {}, {}

    def block(self, made, element_ty, shape):
        """In place of `block_type.__init__`: the shape is checked when it comes for the first time."""
        key = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
        if key not in self._blocks:
            self._make_block(made, element_ty, shape)
            sizes = tl.tuple([tl.constexpr(size) for size in key])
            self._shapes.setdefault(key, (tl.constexpr(math.prod(key)), sizes))  # ranks on threads may do so at once
            self._blocks.setdefault(key, (made.shape, made.numel, str(made.shape)))
        made.element_ty = element_ty
        made.shape, made.numel, text = self._blocks[key]
        made.name = f"<{text}, {element_ty}>"

    def tensor(self, made, handle, type):
        """In place of `tensor.__init__`."""
        made.handle, made.type, made.dtype = handle, type, type.scalar
        made.numel, made.shape = self._shapes[tuple(type.shape.values) if type.is_block() else ()]

    def broadcast(self, semantic, lhs, rhs):
        """In place of `broadcast_impl_value`: what becomes of two shapes is found out when they first meet."""
        if lhs.shape is rhs.shape:
            return lhs, rhs
        if not (lhs.shape.values and rhs.shape.values):
            return self._broadcast(semantic, lhs, rhs)
        key = id(lhs.shape), id(rhs.shape)  # of objects that live as long as this one
        if key not in self._common:
            both = self._broadcast(semantic, lhs, rhs)
            if len(lhs.shape) == len(rhs.shape):
                self._common[key] = both[0].type.shape
            return both
        common, builder = self._common[key], semantic.builder
        return tuple(
            x
            if x.type.shape is common
            else semantic.tensor(builder.create_broadcast(x.handle, common.values), tl.block_type(x.dtype, common))
            for x in (lhs, rhs)
        )

    def unwrap(self, value):
        """In place of `_unwrap_if_constexpr`, which asks for four kinds of values that are rare."""
        if type(value) in self._plain:
            return value
        return value.value if type(value) is tl.constexpr else self._unwrap(value)

    def np_dtype(self, dtype):
        """In place of `_get_np_dtype`, which writes down all types at every call."""
        name = (dtype.element_ty if isinstance(dtype, tl.block_type) else dtype).name
        if name not in self._np_dtypes:
            self._np_dtypes[name] = self._np_dtype(dtype)
        return self._np_dtypes[name]


_types = _Types()
tl.block_type.__init__ = lambda self, element_ty, shape: _types.block(self, element_ty, shape)
tl.tensor.__init__ = lambda self, handle, type: _types.tensor(self, handle, type)
TritonSemantic.broadcast_impl_value = lambda self, lhs, rhs: _types.broadcast(self, lhs, rhs)
interpreter._get_np_dtype = _types.np_dtype
tl.core._unwrap_if_constexpr = _types.unwrap


def _patch_attr(obj, name, member, builder, scope):
    """In place of `_patch_attr`: what it puts there sorts the names of its arguments, and passes them on twice."""
    if member.__code__ is not _BUILTIN:
        _patch_attr_before(obj, name, member, builder, scope)
        return
    semantic, inside = TritonSemantic(builder), member.__wrapped__
    scope.set_attr(obj, name, lambda *args, _semantic=None, **options: inside(*args, _semantic=semantic, **options))


_BUILTIN, _patch_attr_before = tl.core.builtin(lambda: None).__code__, interpreter._patch_attr
interpreter._patch_attr = _patch_attr
