"""Attention on GPUs by Triton kernels. Importing this package needs neither torch nor triton.

Up to `DECODE_QUERIES` queries read every key for few results, which is bound by memory; more are bound by arithmetic.
The functions here choose between the two kinds of kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from attention.arrays import Inputs
    from attention.partial import Partial
    from attention.spec import Spec
    from attention.visibility import Masking

DECODE_QUERIES = 16
"""The most queries that count as decoding."""
DECODE_WIDEST = {2: 576, 4: 256}
"""The greatest head dim that the decode kernel takes, by bytes of an item of q."""


def attend(inputs: Inputs, result: Partial, *, between: Callable[[], None] | None = None) -> None:
    """Write the attention of checked inputs on a GPU into float32 tensors (out, lse), `out` dense in its last axis.

    The call returns when the kernel is launched. `between` is called once, so that messages move meanwhile.

    Raises:
        OperatorError: The inputs have pages, which this does not cover.
        MissingExtraError: triton is not installed.
    """
    _check_no_pages("attend", inputs.pages)
    _prefill("attend").attend_inputs(inputs, result)
    if between is not None:
        between()


def local_partial(
    function: str, arrays: tuple[Any, Any, Any], spec: Spec, masking: Masking, out: Partial | None = None
) -> Partial:
    """`attention.local_attention` of CUDA tensors (q, k, v), with its checks; errors begin with the function's name.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, there are sinks, or pages and many queries.
        MissingExtraError: triton is not installed.
    """
    if _decodes(arrays, out):
        return _decoded(function, arrays, spec, masking, out)
    _check_no_pages(function, masking.block_tables)
    found: Partial = _prefill(function).attend_arrays(function, arrays, spec, masking, out=out)
    return found


def _decodes(arrays: tuple[Any, Any, Any], out: Partial | None) -> bool:
    """Whether the decode kernel takes arrays of these forms; what is wrong with others the checks say."""
    q, k, v = arrays
    if not all(getattr(x, "ndim", 0) == 4 and x.stride(3) == 1 for x in arrays):
        return False
    if max(q.shape[3], v.shape[3]) > DECODE_WIDEST[4 if q.element_size() > 2 else 2]:
        return False
    dense = out is None or all(getattr(x, "is_contiguous", bool)() for x in out)
    return 1 <= q.shape[2] <= DECODE_QUERIES and q.dtype == k.dtype == v.dtype and dense


def _decoded(function: str, arrays: tuple[Any, Any, Any], spec: Spec, masking: Masking, out: Partial | None) -> Partial:
    import torch

    from attention.gpu.decode import decode_partial
    from topocomm import OperatorError

    device = arrays[0].device
    given: dict[str, Any] = {}
    for name, x in masking._asdict().items():
        if x is not None:
            there = torch.as_tensor(x, device=device)
            given[name] = there if name == "kv_mask" else there.to(torch.int64)
    try:
        return decode_partial(*arrays, spec=spec, out=out, **given)
    except OperatorError as error:
        raise OperatorError(str(error).replace("decode_partial", function, 1)) from None


def _check_no_pages(function: str, pages: Any) -> None:
    if pages is not None:
        from topocomm import OperatorError

        raise OperatorError(
            f"{function}: block_tables are not covered on GPUs; gather the pages into k and v [batch, kv_heads, n, d]"
        )


def _prefill(function: str) -> Any:
    try:
        from attention.gpu import prefill
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        from topocomm import MissingExtraError

        raise MissingExtraError(f"attention.{function} on GPUs", "triton", "attention") from error
    return prefill
