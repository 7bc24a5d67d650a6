"""Attention on GPUs by Triton kernels. Importing this package needs neither torch nor triton.

Up to `DECODE_QUERIES` queries read every key for few results, which is bound by memory; more are bound by arithmetic.
The functions here choose between the two kinds of kernel; at present both go to the one for many queries.
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


def attend(inputs: Inputs, result: Partial, *, between: Callable[[], None] | None = None) -> None:
    """Write the attention of checked inputs on a GPU into float32 tensors (out, lse), `out` dense in its last axis.

    The call returns when the kernel is launched. `between` is called once, so that messages move meanwhile.

    Raises:
        OperatorError: The inputs have pages, which this does not cover.
        MissingExtraError: triton is not installed.
    """
    # A kernel for q_len <= DECODE_QUERIES belongs here: `if inputs.q.shape[2] <= DECODE_QUERIES: ...`.
    _check_no_pages("attend", inputs.pages)
    _prefill("attend").attend_inputs(inputs, result)
    if between is not None:
        between()


def local_partial(
    function: str, arrays: tuple[Any, Any, Any], spec: Spec, masking: Masking, out: Partial | None = None
) -> Partial:
    """`attention.local_attention` of CUDA tensors (q, k, v), with its checks; errors begin with the function's name.

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit, or there are sinks or pages.
        MissingExtraError: triton is not installed.
    """
    # Likewise: `if arrays[0].shape[2] <= DECODE_QUERIES: ...`.
    _check_no_pages(function, masking.block_tables)
    found: Partial = _prefill(function).attend_arrays(function, arrays, spec, masking, out=out)
    return found


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
