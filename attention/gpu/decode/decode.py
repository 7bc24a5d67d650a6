"""Attention of a few queries over one shard of keys on a GPU, by the decode kernel."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any, NamedTuple

import torch

from attention.arrays import empty_partial
from attention.gpu.decode.arrivals import arrivals
from attention.gpu.decode.decode_inputs import are_columns, check_inputs, check_out
from attention.gpu.decode.decode_table import (
    KEYS_PER_SPLIT,
    TUNED,
    ahead_for,
    cut_for,
    fewest_blocks,
    flat_programs,
    is_worth_ranges,
    problem_of,
    splits_for,
)
from attention.gpu.decode.occupancy import Multiprocessor, multiprocessor_of, programs_held
from attention.gpu.limits import arch_of, pieces
from attention.gpu.masks import slopes_on
from attention.gpu.placement import current
from attention.partial import Partial
from attention.spec import PLAIN, Spec
from attention.visibility import Masking
from topocomm import MissingExtraError
from topocomm.extend import compile_kernel, launcher, load_kernel

INTERPRETED_CORES = 8
"""Multiprocessors that Triton's interpreter is taken to have."""
STRIDES = 13
"""Arguments of the kernel that are strides."""
PROGRAMS = 2
"""Programs that a multiprocessor is taken to hold where its facts are not known, and where nothing is compiled."""


# The arguments are those of `local_attention`, and scales.
def decode_partial(  # noqa: PLR0913
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    spec: Spec | None = None,
    q_positions: torch.Tensor | None = None,
    kv_positions: torch.Tensor | None = None,
    kv_mask: torch.Tensor | None = None,
    kv_lengths: torch.Tensor | None = None,
    block_tables: torch.Tensor | None = None,
    k_scales: torch.Tensor | None = None,
    v_scales: torch.Tensor | None = None,
    out: Partial | None = None,
) -> Partial:
    """Return attention of up to 16 queries over the keys given, as a float32 Partial; one kernel launch.

    Every key and value byte is read once per key head, and once more for every further 64 query rows a key head (32
    in float32, for head dims beyond 128, and with windows, softcap, slopes, masks or positions; with these beyond 256,
    in float32 beyond 128, 16). Values that are the first columns of the keys (`v = k[..., :512]`, as the latents of
    multi-head latent attention are) are not read on their own. The result has float32 accuracy for 16-bit and 8-bit
    keys too, but that weights have 16 digits beside bfloat16 values and 22 beside float16 and 8-bit ones.

    Nothing is read back to the host, so a call can be captured in a CUDA graph once it has run on its stream. Equal
    calls give equal bits on GPUs of one kind, whatever memory holds beyond the keys. An entry's bits depend on shapes,
    on features of the call, and with `kv_lengths` of several entries and more than 256 keys also on the lengths of the
    others: programs share the keys of all entries evenly, so where an entry is cut depends on what is before it. For
    bits that do not depend on others give entries in calls of their own, or all entries the same keys and a `kv_mask`.

    Args:
        q: [batch, heads, q_len, d], float32, float16 or bfloat16, q_len 1 to 16, d to 576 (float32: 256), last axis
            dense.
        k: [batch, kv_heads, n, d], of q's dtype, or float8 with `k_scales`; last axis dense, n may be 0. With
            block_tables [pages, kv_heads, page size, d].
        v: [batch, kv_heads, n, d_v], of k's dtype; likewise, d_v as d or other.
        spec: As `attention.local_attention`; without sinks.
        q_positions: int64 [q_len] or [batch, q_len].
        kv_positions: int64 [n] or [batch, n].
        kv_mask: bool [n] or [batch, n].
        kv_lengths: Integers [batch]. They are not looked at here: the kernel takes those below 0 as 0, and those beyond
            the cache's capacity (n, or with block_tables pages of an entry x page size) as the capacity.
        block_tables: Integers [batch, pages of an entry]; needs kv_lengths.
        k_scales: float32 [kv_heads]: what k is multiplied by.
        v_scales: float32 [kv_heads]: what v is multiplied by.
        out: Contiguous float32 tensors to write into: views of a prepared call's send buffer, say.

    Returns:
        out [batch, heads, q_len, d_v] and lse [batch, heads, q_len] (natural logarithm). Rows that see no key are
        (0, -inf).

    Raises:
        OperatorError: Shapes, dtypes or devices do not fit; the message names the argument.
        MissingExtraError: Triton is missing.
    """
    spec = PLAIN if spec is None else spec
    masking = Masking(q_positions, kv_positions, kv_mask, kv_lengths, block_tables)
    return _attend(q, k, v, spec, masking, (k_scales, v_scales), out)


def load_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, spec: Spec, out: Partial, **masks: torch.Tensor | None
) -> None:
    """Load what `decode_partial` launches for arguments of these forms, whatever number of keys there is.

    Keys are one or one page at least, with strides as those of calls; `masks` are the arguments from q_positions to
    block_tables that calls have, of the same dtype. `out` is written.
    """
    for many in (False, True):
        _attend(q, k, v, spec, Masking(**masks), (None, None), out, many=many)


class _Ready(NamedTuple):
    """What a launch takes beside pointers.

    Attributes:
        grid: Programs.
        parts: States that a program leaves for others to merge, in rows of all; 0: none.
        tiles: Counters of arrivals.
        slopes: On the device.
        scalars: Arguments after the pointers.
        constants: Of the kernel, and options.
        launches: The kernel as compiled for aligned pointers, once it is.
    """

    grid: tuple[int, int, int]
    parts: int
    tiles: int
    slopes: torch.Tensor | None
    scalars: tuple[Any, ...]
    constants: dict[str, Any]
    launches: list[Any]


_ready: dict[Any, _Ready] = {}
"""By the forms of arguments, which layers of a model have alike: checks and choices are made once for all of them."""
MOST_READY = 1024


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: Spec,
    masking: Masking,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    out: Partial | None,
    *,
    many: bool | None = None,
) -> Partial:
    """Check and launch; `many`: whether programs share the keys of a tile; None: as the number of keys has it."""
    shared = isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor) and are_columns(v, k)
    forms = tuple([_form_of(x) for x in (q, k, v, *masking, *scales)])
    key = (forms, spec, shared, many, TUNED.version)
    ready = _ready.get(key)
    if ready is None:
        check_inputs(q, k, v, spec, masking, scales, interpreted())
        if len(_ready) >= MOST_READY:
            _ready.clear()
        ready = _ready[key] = _ready_for(q, k, v, spec, masking, scales, shared=shared, many=many)
    shape = (*q.shape[:3], v.shape[3])
    if out is None:
        out = empty_partial(shape, q.device)
    else:
        check_out(q, out, shape)
    if ready.scalars[0] == 0 or out.lse.numel() == 0:  # addresses and strides of no keys would compile another kernel
        out.out.zero_()
        out.lse.fill_(-torch.inf)
        return out
    with current(q.device):
        _launch(ready, (q, k, v, *out), masking, scales)
    return out


def _form_of(x: Any) -> Any:
    """What checks and choices ask about an argument."""
    if not isinstance(x, torch.Tensor):
        return type(x)
    return x.shape, x.stride(), x.dtype, x.device, x.requires_grad


def _launch(
    ready: _Ready,
    arrays: tuple[torch.Tensor, ...],
    masking: Masking,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
) -> None:
    """Launch the kernel for q, k, v, out and lse; without Triton's questions where all pointers are aligned."""
    q, _, v, *_ = arrays
    rows = ready.parts * ready.constants["BLOCK_M"]
    pointers = (
        *arrays,
        *(_scratch(q.device, rows, v.shape[3]) if rows else (None, None)),
        arrivals(q.device, ready.tiles) if rows else None,
        masking.kv_lengths, masking.block_tables, masking.q_positions, masking.kv_positions,
        None if masking.kv_mask is None else masking.kv_mask.view(torch.int8), ready.slopes, *scales,
    )  # fmt: skip
    if interpreted() or torch.version.hip is not None or any(x is not None and x.data_ptr() % 16 for x in pointers):
        launcher(_kernel(), ready.grid)(*pointers, *ready.scalars, **ready.constants)
        return
    if not ready.launches:
        ready.launches.append(load_kernel(_kernel(), (*pointers, *ready.scalars), ready.constants))
    ready.launches[0](ready.grid, *pointers, *ready.scalars)


def _ready_for(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spec: Spec,
    masking: Masking,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    *,
    shared: bool,
    many: bool | None,
) -> _Ready:
    batch, heads, q_len, d = q.shape
    kv_heads, n, d_v = v.shape[1:]
    page_size = 1  # a constant of the kernel, so without pages it must not be n, which grows
    if masking.block_tables is not None:
        page_size, n = max(n, 1), n * masking.block_tables.shape[1]
    group = heads // kv_heads
    itemsize = 4 if q.dtype == torch.float32 else 2
    arch, _ = machine_of(q.device)
    problem = problem_of(arch, itemsize, max(d, d_v), group * q_len, form=_form(spec, masking, scales), shared=shared)
    cut, rows = cut_for(problem), problem.rows
    tiles = -(-group * q_len // rows)
    (d0, d1), (dv0, dv1) = pieces(d), value_pieces(d, d_v, shared)
    slopes = slopes_on(q.device, spec.slopes)
    mask = None if masking.kv_mask is None else torch.int8
    dtypes = [
        None if x is None else x.dtype
        for x in (masking.kv_lengths, masking.block_tables, masking.q_positions, masking.kv_positions)
    ]
    types = q.dtype, k.dtype, *dtypes, mask, *(None if x is None else x.dtype for x in (slopes, *scales))
    constants = {
        "GROUP": group, "Q_LEN": q_len, "PAGE": page_size, "KV_HEADS": kv_heads,
        "D": d, "D0": d0, "D1": d1, "DV": d_v, "DV0": dv0, "DV1": dv1,
        "CAUSAL": spec.causal, "WINDOW": spec.window is not None, "SOFTCAP": spec.softcap is not None,
        "DOT": dot_dtype(q.dtype, k.dtype), "INTERPRETED": interpreted(), "FEWEST": fewest_blocks(cut),
        "AHEAD": ahead_for(problem, cut, dv0 + dv1), "SHARED": shared, "BLOCK_M": rows, "BLOCK_N": cut.block_n,
        "num_warps": cut.num_warps, "num_stages": cut.num_stages,
    }  # fmt: skip
    one_part = max(1, batch * kv_heads * tiles)
    ranges = is_worth_ranges(n, one_part, cut) if many is None else many
    flat = masking.kv_lengths is not None and batch > 1 and ranges
    slots = 1
    if n and (many or (many is None and n > KEYS_PER_SPLIT)):
        with current(q.device):
            slots = slots_of(q.device, types, FLAT=flat, **constants)
    if flat:
        splits, grid = 1, (flat_programs(n, one_part, slots), 1, 1)
        states = 2 * grid[0]
    else:
        splits = splits_for(n, one_part, slots) if many is None else 1 + many
        grid, states = (tiles, splits, batch * kv_heads), one_part * splits
    several = flat or splits > 1
    scalars = (
        n, batch, splits, spec.scale_for(d), spec.softcap or 0.0, min(spec.window or 0, 1 << 29),
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        0 if masking.block_tables is None else masking.block_tables.stride(0),
        *(_entry_stride(x) for x in (masking.q_positions, masking.kv_positions, masking.kv_mask)),
    )  # fmt: skip
    constants |= {"MANY": several, "FLAT": flat}
    return _Ready(grid, states if several else 0, one_part, slopes, scalars, constants, [])


@lru_cache(maxsize=4096)  # a step of decoding asks for few different ones, in every layer
def slots_of(device: torch.device, types: tuple[torch.dtype | None, ...], **constants: Any) -> int:
    """Return how many programs of the kernel a device runs at once, by registers and shared memory as compiled.

    It is the kernel for aligned arrays, so that bits do not depend on how arrays lie; the launch of such ones finds it
    compiled.

    Args:
        device: The current one.
        types: Dtypes of q, of k, and of the pointers from lengths to v_scales; None: not there.
        constants: Those of the kernel but for MANY, num_warps and num_stages.
    """
    cores = machine_of(device)[1]
    multiprocessor = _multiprocessor_of(device)
    if multiprocessor is None:
        return cores * PROGRAMS
    q, k, *pointers = types
    single = [torch.float32] * 4
    arguments = q, k, k, *single, torch.int32, *pointers, 1, 1, 1, 1.0, 1.0, 1, *[16] * STRIDES
    compiled = compile_kernel(_kernel(), arguments, {"MANY": True, **constants})
    if compiled is None:
        return cores * PROGRAMS
    return cores * programs_held(multiprocessor, compiled.n_regs, compiled.metadata.shared, constants["num_warps"])


def _form(spec: Spec, masking: Masking, scales: tuple[torch.Tensor | None, torch.Tensor | None]) -> str:
    bent = (spec.window, spec.softcap, spec.alibi_slopes, masking.q_positions, masking.kv_positions, masking.kv_mask)
    if any(x is not None for x in bent):
        return "full"
    if any(x is not None for x in (masking.block_tables, *scales)):
        return "paged"
    return "usual" if spec.causal or masking.kv_lengths is not None else "plain"


def value_pieces(d: int, d_v: int, shared: bool) -> tuple[int, int]:
    """Return the pieces of d_v; those of the keys where the values are their first columns."""
    if not shared:
        return pieces(d_v)
    first, second = pieces(d)
    return first, second if d_v > first else 0


@cache
def interpreted() -> bool:
    """Return whether kernels run in Triton's interpreter, on the CPU."""
    kernel = _kernel()
    from triton.runtime import JITFunction

    return not isinstance(kernel, JITFunction)


def dot_dtype(dtype: torch.dtype, stored: torch.dtype) -> Any:
    """In which dtype the kernel multiplies, for the dtypes of q and of k: float16 holds 8 bits of either kind exactly.

    The interpreter multiplies in float32 what it rounds to float16; it does not round to bfloat16, but cuts off.
    """
    import triton.language as tl

    if dtype == stored == torch.bfloat16 and not interpreted():
        return tl.bfloat16
    return tl.float32 if dtype == torch.float32 or stored == torch.bfloat16 else tl.float16


@cache
def machine_of(device: torch.device) -> tuple[str, int]:
    """Return (arch, multiprocessors) of a device."""
    if device.type != "cuda":
        return "interpreter", INTERPRETED_CORES
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return arch_of("hip", properties.gcnArchName), properties.multi_processor_count
    return arch_of("cuda", properties.major * 10 + properties.minor), properties.multi_processor_count


@cache
def _multiprocessor_of(device: torch.device) -> Multiprocessor | None:
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return multiprocessor_of(machine_of(device)[0], properties, hip=torch.version.hip is not None)


def _scratch(device: torch.device, rows: int, d_v: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.empty(size, dtype=torch.float32, device=device) for size in (rows * d_v, rows * 2))  # type: ignore[return-value]


def _entry_stride(x: torch.Tensor | None) -> int:
    """Of an array [n] or [batch, n]; 0 where all batch entries share it."""
    return 0 if x is None or x.ndim == 1 or x.shape[0] == 1 else x.stride(0)


def _kernel() -> Any:
    try:
        from attention.gpu.decode.decode_kernel import decode_kernel
    except ModuleNotFoundError as error:
        raise MissingExtraError("attention on GPUs", "triton", "attention") from error
    return decode_kernel
