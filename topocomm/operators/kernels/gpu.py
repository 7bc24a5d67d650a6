"""Folds of packed chunks in the memory of a GPU: one kernel launch for any number of operands and of folds.

An operator that says how tiles are combined (`Operator.triton`) runs the kernel of `gpu_kernel.py`, on a GPU or, in
Triton's interpreter, on the CPU. Others run `combine` on tensors of the GPU, one operand after the other. On the CPU
without the interpreter the CPU's own fold runs.

torch and triton are imported when a fold is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import OperatorError
from topocomm.operators.dtypes import kind
from topocomm.operators.kernels.launcher import launcher, load_kernel, on_device
from topocomm.operators.layout import BoundField, Layout
from topocomm.operators.operator import Operator, TritonCombine
from topocomm.operators.tensors import as_array, device_fold, device_views

if TYPE_CHECKING:
    import torch

DeviceFold = Callable[[Mapping[str, Any]], None]
"""Function that writes its result to the given tensors, one contiguous [rows, *dims] per field."""

ALIGNMENT_BYTES = 16
"""Most bytes that one thread of a GPU loads at once."""
PROGRAMS = 256
"""Target number of programs before tiles grow: about two per multiprocessor of a large GPU."""
TILE_ITEMS = 256, 1024
"""Fewest and most items of a tile, over all fields; a row is never split."""
MOST_ROW_ITEMS = 16384
"""Most items of a row that fit in the registers of a program."""
MOST_UNROLLED = 8
"""Most operands whose loads are all in flight at once; more run in a loop."""
TRITON_NAMES = {"bool": "uint8", "complex64": "float32", "complex128": "float64"}
"""Dtypes of items in the kernels, where they differ from a field's: complex numbers are two items."""
ITEMS_PER_THREAD = 8
MOST_REGISTERS = 255
"""Register limit of an NVIDIA thread, given so that the assembler reserves none for absent programs and spills."""


class Work(NamedTuple):
    """One fold: of packed chunks of `rows` rows at bytes `offsets`, to a packed chunk at byte `target`.

    `target` None: each call says where the result goes.
    """

    rows: int
    offsets: Sequence[int]
    target: int | None = None


def bind_device_fold(
    operator: Operator, layout: Layout, buffer: torch.Tensor, rows: int, offsets: Sequence[int]
) -> DeviceFold:
    """As `Operator.bind_fold`, in the memory of a GPU.

    With a Triton combine a call launches one kernel on the current stream and allocates nothing, so that a CUDA graph
    can hold it. The kernel is compiled and loaded here, which may wait for the GPU; for targets at addresses that 16
    does not divide at the first call with such, so let one go before a graph is captured. Products and sums are not
    fused, so the built-in operators have the bits of the CPU (only which NaN a NaN is may differ).

    Args:
        operator: Whose values these are.
        layout: Theirs; its leading shape does not matter.
        buffer: uint8 [bytes], contiguous, on a GPU, at an address that 16 divides. On the CPU too: Triton's interpreter
            runs if it is on (TRITON_INTERPRET=1 before triton is imported), else the CPU's own fold.
        rows: Rows of every chunk.
        offsets: Bytes at which the packed chunks start, from the left operand on, one or more.

    Returns:
        A function that folds into contiguous tensors [rows, *dims], one per field, of the layout's dtypes on the
        buffer's device. They may be the memory of one operand, field by field.

    Raises:
        OperatorError: The buffer is no such tensor, a chunk is not in it or not aligned to its items; at a call: a
            target does not fit, or `combine` of an operator without a Triton combine does not take tensors.
    """
    _check(layout, buffer, [Work(rows, offsets)])
    combine = usable(operator, layout, buffer.device.type)
    if combine is not None:
        return _launch_into(combine, layout, buffer, rows, offsets)
    if buffer.device.type == "cpu":
        fold = operator.bind_fold(layout, buffer.numpy(), rows, offsets, tensors=True)
        return lambda target: fold({name: as_array(tensor) for name, tensor in target.items()})
    return device_fold(
        operator.name, operator.combine, [device_views(layout, buffer, offset, rows) for offset in offsets]
    )


def bind_device_folds(
    operator: Operator, layout: Layout, buffer: torch.Tensor, folds: Sequence[tuple[int, Sequence[int], int]]
) -> Callable[[], None]:
    """As `bind_device_fold` for several folds that do not depend on each other, in one launch.

    `folds` has (rows, offsets, target offset) of every fold: the last is the byte of `buffer` at which the packed
    result starts. It may be the offset of one of the fold's own operands. The function that is returned reads and
    writes `buffer`, which must stay where it is.
    """
    work = [Work(*fold) for fold in folds]
    _check(layout, buffer, work)
    combine = usable(operator, layout, buffer.device.type)
    if combine is not None:
        return _launch_all(combine, layout, buffer, work)
    bound = [
        (bind_device_fold(operator, layout, buffer, rows, offsets), device_views(layout, buffer, target, rows))
        for rows, offsets, target in folds
    ]

    def run() -> None:
        for fold, target in bound:
            fold(target)

    return run


def device_fold_version(operator: Operator, layout: Layout, device_type: str) -> str:
    """Return the version of the folds on devices of a type, as "cuda"; equal versions round equally."""
    combine = usable(operator, layout, device_type)
    if combine is not None:
        return combine.version
    return operator.fold_version(layout, tensors=True) if device_type == "cpu" else "torch"


def _check(layout: Layout, buffer: Any, work: Sequence[Work]) -> None:
    import torch

    if not isinstance(buffer, torch.Tensor) or buffer.dtype != torch.uint8 or buffer.ndim != 1:
        got = f"{buffer.dtype} {list(buffer.shape)}" if isinstance(buffer, torch.Tensor) else type(buffer).__name__
        raise OperatorError(f"buffer must be a torch tensor uint8 [bytes], got {got}")
    if not buffer.is_contiguous() or buffer.data_ptr() % ALIGNMENT_BYTES:
        raise OperatorError("buffer must be contiguous and start at an address that 16 divides; take it from its start")
    step = max(f.dtype.itemsize for f in layout.fields)
    for rows, offsets, target in work:
        if not offsets:
            raise OperatorError("offsets: expected one operand or more, got none")
        places = [("offset", at) for at in offsets]
        if target is not None:
            places.append(("target offset", target))
        for name, at in places:
            end = at + layout.packed_bytes(rows)
            if at < 0 or end > buffer.numel():
                raise OperatorError(
                    f"{name} {at}: a chunk of {rows} rows ends at byte {end} of a buffer of {buffer.numel()}"
                )
            if at % step:
                raise OperatorError(f"{name} {at}: expected a multiple of {step}, the largest item; align the chunks")


def usable(operator: Operator, layout: Layout, device_type: str) -> TritonCombine | None:
    """Return the operator's Triton combine if the kernel can run it on such a device."""
    return operator.triton_combine(layout) if takes(layout, device_type) else None


def takes(layout: Layout, device_type: str) -> bool:
    """Return whether kernels on tiles take values of a layout on such a device."""
    fits = all(kind(f.dtype) for f in layout.fields) and sum(map(_width, layout.fields)) <= MOST_ROW_ITEMS
    return fits and (device_type != "cpu" or _interpreting())


def _interpreting() -> bool:
    try:
        from topocomm.operators.kernels.gpu_tiles import INTERPRETED
    except ImportError:  # triton is optional
        return False
    return bool(INTERPRETED.value)


def _items(field: BoundField) -> int:
    """Return the items of a row in the kernel: complex numbers are two."""
    return prod(field.row_shape) * (2 if kind(field.dtype) == "c" else 1)


def _width(field: BoundField) -> int:
    return power_of_two(max(1, _items(field)))


def power_of_two(least: int) -> int:
    """Return the least power of two that is not below this."""
    return 1 << (least - 1).bit_length()


def fold_table(layout: Layout, work: Sequence[Work]) -> NDArray[np.int64]:
    """Where all is, a row for every fold, as the kernel reads it; zeros where there are fewer operands."""
    fields = len(layout.fields)
    table = np.zeros((len(work), 2 + fields * (1 + max(len(fold.offsets) for fold in work))), np.int64)
    for row, (rows, offsets, target) in zip(table, work, strict=True):
        starts = [0] * fields if target is None else layout.addresses(target, rows)
        starts += [at for place in offsets for at in layout.addresses(place, rows)]
        row[: 2 + len(starts)] = [rows, len(offsets), *starts]
    return table


def backend_of(device_type: str) -> str:
    """Return the compiler backend for devices of a type: "cuda", "hip" or "interpreter"."""
    if device_type != "cuda":
        return "interpreter"
    import torch

    return "cuda" if torch.version.hip is None else "hip"


def launch_options(combine: TritonCombine, layout: Layout, work: Sequence[Work], backend: str) -> dict[str, Any]:
    """Return the kernel's constants by name, and the options of a launch."""
    fields, table = layout.fields, fold_table(layout, work)
    operands = {0} if combine.long else {len(fold.offsets) for fold in work}
    return tile_options(combine, layout, sum(fold.rows for fold in work), backend) | {
        "ALIGNS": tuple(power_that_divides(table[:, 2 + index :: len(fields)]) for index in range(len(fields))),
        "ROW_FACTOR": power_that_divides(table[:, 0]),
        "OPERANDS": max(operands) if len(operands) == 1 and max(operands) <= MOST_UNROLLED else 0,
    }


def tile_options(combine: TritonCombine | None, layout: Layout, rows: int, backend: str) -> dict[str, Any]:
    """What a kernel on tiles of values is compiled for, `rows` of them in all; None combines nothing."""
    import triton.language as tl

    fields = layout.fields
    widths = tuple(_width(f) for f in fields)
    tile_rows = _tile_rows(rows, sum(widths))
    return {
        "COMBINE": None if combine is None else combine.function,
        "CONSTANTS": () if combine is None else tuple(combine.constants),
        "DTYPES": tuple(getattr(tl, TRITON_NAMES.get(f.dtype.name, f.dtype.name)) for f in fields),
        "ITEMS": tuple(_items(f) for f in fields),
        "WIDTHS": widths,
        "ROWS": tile_rows,
        "num_warps": _warps(tile_rows * sum(widths)),
        "enable_fp_fusion": False,
        **({"maxnreg": MOST_REGISTERS} if backend == "cuda" else {}),
    }


def _launch_of(
    combine: TritonCombine, layout: Layout, buffer: torch.Tensor, work: Sequence[Work]
) -> tuple[dict[str, Any], torch.Tensor, int]:
    """Return constants and options of a launch, the table on the device, and the programs of one fold."""
    import torch

    options = launch_options(combine, layout, work, backend_of(buffer.device.type))
    table = torch.from_numpy(fold_table(layout, work)).to(buffer.device)
    return options, table, -(-max(fold.rows for fold in work) // options["ROWS"])


def _launch_into(
    combine: TritonCombine, layout: Layout, buffer: torch.Tensor, rows: int, offsets: Sequence[int]
) -> DeviceFold:
    import triton
    import triton.language as tl

    from topocomm.operators.kernels.gpu_kernel import fold_kernel

    expected = device_views(layout, buffer, offsets[0], rows)
    launch = None
    if layout.packed_bytes(rows):
        options, table, tiles = _launch_of(combine, layout, buffer, [Work(rows, offsets)])
        launch = launcher(fold_kernel, (tiles,))
        aligned = (triton.reinterpret(buffer, tl.uint8),) * len(expected)
        with on_device(buffer):
            load_kernel(fold_kernel, (buffer, aligned, table, table.shape[1], tiles), options)

    def fold(target: Mapping[str, Any]) -> None:
        for name, like in expected.items():
            _check_target(name, target.get(name), like)
        if launch is not None:
            targets = tuple(triton.reinterpret(target[name], tl.uint8) for name in expected)
            launch(buffer, targets, table, table.shape[1], tiles, **options)

    return fold


def _launch_all(
    combine: TritonCombine, layout: Layout, buffer: torch.Tensor, work: Sequence[Work]
) -> Callable[[], None]:
    from topocomm.operators.kernels.gpu_kernel import fold_kernel

    work = [fold for fold in work if layout.packed_bytes(fold.rows)]
    if not work:
        return lambda: None
    options, table, tiles = _launch_of(combine, layout, buffer, work)
    args = (buffer, (buffer,) * len(layout.fields), table, table.shape[1], tiles)
    grid = (len(work) * tiles,)
    with on_device(buffer):
        launch = load_kernel(fold_kernel, args, options)
    return lambda: launch(grid, *args)


def _check_target(name: str, target: torch.Tensor | None, like: torch.Tensor) -> None:
    if target is None or target.shape != like.shape or target.dtype != like.dtype or target.device != like.device:
        got = "none" if target is None else f"{target.dtype} {list(target.shape)} on {target.device}"
        raise OperatorError(
            f"target {name!r}: expected a tensor {like.dtype} {list(like.shape)} on {like.device}, got {got}"
        )
    if not target.is_contiguous():
        raise OperatorError(f"target {name!r} must be contiguous; take one of its own memory")


def power_that_divides(words: NDArray[np.int64]) -> int:
    """Return the greatest power of two, up to 16, that divides all words: a thread then loads several items at once."""
    return gcd(ALIGNMENT_BYTES, *map(int, words.flat))


def _warps(items: int) -> int:
    """Return the warps of a program: 1, 2, 4 or 8."""
    return min(8, power_of_two(-(-items // (32 * ITEMS_PER_THREAD))))


def _tile_rows(rows: int, row_items: int) -> int:
    """Return the rows of a program: enough programs first, then larger tiles."""
    fewest, most = TILE_ITEMS
    items = min(max(power_of_two(max(1, rows * row_items // PROGRAMS)), fewest), most)
    return max(1, min(power_of_two(rows), items // power_of_two(row_items)))
