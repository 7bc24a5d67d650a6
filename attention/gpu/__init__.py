"""Attention on GPUs by Triton kernels. Importing this package needs neither torch nor triton.

Up to `DECODE_QUERIES` queries read every key for few results, which is bound by memory; more are bound by arithmetic.
The functions here choose between the two kinds of kernel.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from attention.gpu.limits import DECODE_QUERIES as DECODE_QUERIES
from attention.gpu.limits import DECODE_WIDEST as DECODE_WIDEST

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from attention.arrays import Inputs
    from attention.partial import Partial
    from attention.spec import Spec
    from attention.visibility import Masking


def attend(inputs: Inputs, result: Partial, *, between: Callable[[], None] | None = None) -> None:
    """Write the attention of checked inputs on a GPU into float32 tensors (out, lse), `out` dense in its last axis.

    The call returns when the kernel is launched. `between` is called once, so that messages move meanwhile.

    Raises:
        OperatorError: There are pages and many queries, or forms of arrays for which the decode kernel is not made.
        MissingExtraError: triton is not installed.
    """
    if decodes(inputs):
        _decode_inputs(inputs, result)
    else:
        _check_no_pages("attend", inputs.pages)
        _prefill_inputs(inputs, result)
    if between is not None:
        between()


def load(inputs: Inputs, result: Partial) -> None:
    """Load what `attend` launches for inputs of these forms, whatever number of keys they have, unless it refuses them.

    Inputs have strides as those of calls, and one key at least, or one page. The result is contiguous, and written.
    """
    if decodes(inputs):
        _decode_inputs(inputs, result, loads=True)
    elif inputs.pages is None:
        _prefill_inputs(inputs, result)


def attend_onto(inputs: Inputs, running: Partial, *, first: bool) -> None:
    """Merge the attention of checked inputs without pages, of any number of queries, onto a float32 partial there.

    Contiguous positions in host memory need no block lists. The partial's `out` is dense in its last axis; if `first`
    it is written, whatever it holds.
    """
    _prefill("attend").attend_inputs(inputs, running, merges=not first)


def fold(outs: Sequence[torch.Tensor], lses: Sequence[torch.Tensor]) -> Partial:
    """Return the left fold of partials on a GPU, out [*rows, dim] and lse [*rows] each: one launch for up to 16.

    Raises:
        MissingExtraError: triton is not installed.
    """
    from attention.partial import Partial

    try:
        from attention.gpu.gpu_merge import merge_on_device
    except ModuleNotFoundError as error:
        raise _no_triton("merge_states") from error
    return Partial(*merge_on_device(tuple(outs), tuple(lses)))


def decodes(inputs: Inputs) -> bool:
    """Return whether the decode kernel takes checked inputs."""
    return _decodes((inputs.q, inputs.k, inputs.v), None)


def without_sinks(spec: Spec) -> Spec:
    """Return the spec of a partial, which counts no sinks."""
    return spec if spec.sinks is None else _without_sinks(spec)


@cache
def _without_sinks(spec: Spec) -> Spec:
    return replace(spec, sinks=None)


def _decode_inputs(inputs: Inputs, result: Partial, *, loads: bool = False) -> None:
    from attention.gpu.decode.decode import decode_partial, load_decode
    from attention.gpu.masks import masking_of

    masking = masking_of(inputs.visibility, inputs.spec, inputs.q.device)._replace(block_tables=inputs.pages)
    dense = result if all(x.is_contiguous() for x in result) else inputs.empty_partial()
    spec = without_sinks(inputs.spec)
    run = load_decode if loads else decode_partial
    run(inputs.q, inputs.k, inputs.v, spec=spec, out=dense, **masking._asdict())
    if dense is not result:
        for target, x in zip(result, dense, strict=True):
            target.copy_(x)


def _prefill_inputs(inputs: Inputs, result: Partial) -> None:
    """Positions as the caller gave them: contiguous ones in host memory need no block lists."""
    from attention.gpu.masks import DeviceVisibility

    kernels, visibility = _prefill("attend"), inputs.visibility
    if isinstance(visibility, DeviceVisibility):
        arrays = inputs.q, inputs.k, inputs.v
        kernels.attend_arrays("attend", arrays, without_sinks(inputs.spec), visibility.for_prefill, out=result)
    else:
        kernels.attend_inputs(inputs, result)


def local_partial(
    function: str, arrays: tuple[Any, Any, Any], spec: Spec, masking: Masking, out: Partial | None = None
) -> Partial:
    """`attention.local_attention` of CUDA tensors (q, k, v), with its checks; errors begin with the function's name.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, there are sinks, or pages and many queries.
        MissingExtraError: triton is not installed.
    """
    import torch

    from topocomm import OperatorError

    if not _decodes(arrays, out):
        _check_no_pages(function, masking.block_tables)
        partial: Partial = _prefill(function).attend_arrays(function, arrays, spec, masking, out=out)
        return partial
    from attention.gpu.decode.decode import decode_partial

    device = arrays[0].device
    on_device: dict[str, Any] = {}
    for name, x in masking._asdict().items():
        if x is not None:
            tensor = torch.as_tensor(x, device=device)
            on_device[name] = tensor if name == "kv_mask" else tensor.to(torch.int64)
    try:
        return decode_partial(*arrays, spec=spec, out=out, **on_device)
    except OperatorError as error:
        raise OperatorError(str(error).replace("decode_partial", function, 1)) from None


def _decodes(arrays: tuple[Any, Any, Any], out: Partial | None) -> bool:
    """Whether the decode kernel takes arrays of these forms; checks say what is wrong with others."""
    q, k, v = arrays
    if not all(getattr(x, "ndim", 0) == 4 and x.stride(3) == 1 for x in arrays):
        return False
    if max(q.shape[3], v.shape[3]) > DECODE_WIDEST[4 if q.element_size() > 2 else 2]:
        return False
    dense = out is None or all(getattr(x, "is_contiguous", bool)() for x in out)
    return 1 <= q.shape[2] <= DECODE_QUERIES and q.dtype == k.dtype == v.dtype and dense


def _check_no_pages(function: str, pages: Any) -> None:
    if pages is not None:
        from topocomm import OperatorError

        raise OperatorError(
            f"{function}: block_tables are not covered on GPUs for more than {DECODE_QUERIES} queries, heads wider "
            "than the decode kernel takes, or q of another dtype than k; gather the pages into k and v "
            "[batch, kv_heads, n, d]"
        )


def _prefill(function: str) -> Any:
    try:
        from attention.gpu.prefill import prefill
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise _no_triton(function) from error
    return prefill


def _no_triton(function: str) -> Exception:
    from topocomm import MissingExtraError

    return MissingExtraError(f"attention.{function} on GPUs", "triton", "attention")
