"""Which kernel attends one shard of keys: a table of kernels, and the first that takes a call on a machine.

Both are plain data, so every line of the table is tested without the machine or the library that it is about, and
`topocomm doctor` prints what would be chosen here, and why. Nothing here needs torch.

No kernel of the table reads anything back from the device, so that a call can be captured in a CUDA graph once the same
call ran: what is captured is what ran, since the choice does not ask whether a graph is being captured.

FlashInfer plans batches and latents on the host, once for each set of lengths, which the layers of a model share. It
gets lengths that the host knows, and no others: those on the device would be read back at every step. It gets no block
tables: they may change while lengths stay, so that its list of pages would be made anew at every call. Its plan for
several queries per sequence came with a late release (`q_len_per_req`), so batches are given to it with one query each.
Latents go to it up to Hopper only: on Blackwell its wrapper warns that the kernel it has there is slow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

Device = Literal["cpu", "cuda"]
Seen = Literal["all", "square", "last"]

SIXTEEN_BITS = frozenset({"float16", "bfloat16"})
EVERY_DTYPE = SIXTEEN_BITS | {"float32"}
FEW_QUERIES = 16
"""The most queries that count as decoding: bound by memory, not by arithmetic."""

FEATURES = {
    "positions": "positions other than those of queries at the end of their keys",
    "window": "window",
    "softcap": "softcap",
    "alibi_slopes": "slopes",
    "kv_mask": "kv_mask",
    "kv_lengths": "kv_lengths: what lies beyond them may be NaN, which it would spread",
    "device_lengths": "kv_lengths that the host would have to read back, or of entries without keys",
    "block_tables": "pages",
    "merge": "partial to merge onto",
    "between": "messages that move meanwhile",
    "strided": "last axis with gaps",
    "unaligned": "memory that does not begin every row at a multiple of 16 bytes",
    "apart": "keys and values of different strides",
    "interleaved": "entries that are no whole rows of keys apart in memory, which are no pages",
}
"""What a call may ask for beyond scale and causality, and how a refusal names it."""


@dataclass(frozen=True)
class Call:
    """What the choice asks about one call. Sizes are those of `local_attention`.

    Attributes:
        device: Where the tensors are: "cpu", or "cuda" for any GPU.
        dtypes: Of q, and of k and v; names of torch.
        seen: Which query sees which key, unless there are positions: "all" see all; causal with the queries as the
            "last" of more keys than queries, or of as many keys: "square". No row is empty in any of these.
        latents: Whether the values are the first columns of the keys, in the same memory.
        exact: Whether out must not be rounded to q's dtype.
    """

    device: Device
    dtypes: tuple[str, str]
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    n: int
    d: int
    d_v: int
    seen: Seen = "all"
    features: frozenset[str] = frozenset()
    latents: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Machine:
    """What the choice asks about a machine.

    Attributes:
        name: For people: "NVIDIA H100 80GB HBM3".
        capability: CUDA compute capability of an NVIDIA GPU; None: another maker's, or no GPU.
        missing: By the name of a library, why it cannot be used here; what is not in it can.
    """

    device: Device
    name: str
    capability: tuple[int, int] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


class HeadDims(NamedTuple):
    """Widths that a kernel takes: of queries and keys, and of values; from the first to the last, multiples of `of`."""

    d: tuple[int, int]
    d_v: tuple[int, int]
    of: int = 1
    equal: bool = False
    latents: bool = False
    """The values must be the first columns of the keys."""
    sixteen_bits: bool = False
    """The queries must be in 16 bits."""

    def take(self, call: Call) -> bool:
        """Whether a call has such widths."""
        fits = all(
            low <= size <= high and size % self.of == 0
            for size, (low, high) in ((call.d, self.d), (call.d_v, self.d_v))
        )
        narrow = call.dtypes[0] in SIXTEEN_BITS or not self.sixteen_bits
        return fits and narrow and (call.d == call.d_v or not self.equal) and (call.latents or not self.latents)


@dataclass(frozen=True)
class Row:
    """A kernel, what it takes, and why it stands where it does.

    Attributes:
        reason: Why it is chosen before those below.
        library: What it needs, a name of `Machine.missing`; of a part of a package, "package.part". None: nothing.
        capabilities: The first and the last CUDA compute capability; None: any GPU.
        dtypes: Of q; k and v have the same, unless `mixed`.
        mixed: Whether k and v may have another dtype than q.
        queries: The fewest and the most; None: no limit.
        keys: The fewest; 0: takes empty arrays of every kind.
        entries: The most batch entries; None: any number.
        head_dims: One of these must fit; empty: any.
        features: Of `FEATURES`; scale and causality as `Call.seen` has it are for all.
        rounds: Whether out is rounded to q's dtype, which loses something in 16 bits.
    """

    name: str
    device: Device
    reason: str
    library: str | None = None
    capabilities: tuple[tuple[int, int], tuple[int, int]] | None = None
    dtypes: frozenset[str] = EVERY_DTYPE
    mixed: bool = False
    queries: tuple[int, int | None] = (0, None)
    keys: int = 0
    entries: int | None = None
    head_dims: tuple[HeadDims, ...] = ()
    features: frozenset[str] = frozenset()
    rounds: bool = False


class Choice(NamedTuple):
    """The kernel chosen, and why each one before it was not."""

    row: Row
    passed: tuple[tuple[str, str], ...]


ANYTHING = frozenset(FEATURES)
FLASH_3, CUDNN, FLASHINFER = "FlashAttention-3", "cuDNN", "FlashInfer"
FLASHINFER_BATCH, FLASHINFER_LATENTS = "FlashInfer, batch", "FlashInfer, MLA"
DECODE, PREFILL = "decode kernel", "prefill kernel"
TORCH_AMX, ROWS, TORCH_CPU, BLOCKS = "torch flash, AMX", "rows kernel", "torch flash, CPU", "blocks"

_library_row = partial(Row, device="cuda", dtypes=SIXTEEN_BITS, keys=1, rounds=True)
"""What the kernels of other libraries for GPUs have in common."""

_torch_row = partial(
    Row,
    device="cpu",
    keys=1,
    head_dims=(HeadDims((1, 1 << 16), (1, 1 << 16), equal=True),),
    features=frozenset({"unaligned", "apart", "interleaved"}),
    rounds=True,
)
"""torch's fused kernel for the CPU."""

TABLE: tuple[Row, ...] = (
    _library_row(
        FLASH_3,
        reason="written for Hopper: warp-specialised products and bulk copies",
        library="flash_attn_interface",
        capabilities=((9, 0), (9, 0)),
        queries=(1, None),
        head_dims=(
            HeadDims((8, 256), (8, 256), of=8, equal=True),
            HeadDims((136, 192), (104, 128), of=8),
            HeadDims((576, 576), (512, 512), latents=True),
        ),
        features=frozenset({"apart", "interleaved"}),
    ),
    _library_row(
        CUDNN,
        reason="comes with torch; its plans are made per shape, which prompts of a model share between layers",
        library="cuDNN",
        capabilities=((8, 0), (12, 1)),
        queries=(FEW_QUERIES + 1, None),  # in decoding n grows, and every n would be planned anew
        keys=2,  # torch: no sequence of one key
        entries=65535,
        head_dims=(HeadDims((8, 128), (8, 128), of=8),),
        features=frozenset({"apart", "interleaved"}),
    ),
    _library_row(
        FLASHINFER,
        reason="splits the keys of one sequence over the GPU",
        library="flashinfer",
        capabilities=((8, 0), (12, 1)),
        queries=(1, FEW_QUERIES),
        entries=1,  # one launch an entry
        head_dims=tuple(HeadDims((d, d), (d, d)) for d in (64, 128, 256)),
        features=frozenset({"interleaved"}),
    ),
    _library_row(
        FLASHINFER_BATCH,
        reason="splits the keys of every sequence over the GPU by a plan made once a step; the cache is its pages",
        library="flashinfer.decode",
        capabilities=((8, 0), (12, 1)),
        queries=(1, 1),
        head_dims=tuple(HeadDims((d, d), (d, d)) for d in (64, 128, 256)),
        features=frozenset({"kv_lengths"}),
    ),
    _library_row(
        FLASHINFER_LATENTS,
        reason="reads latents once for all heads, split by a plan made once a step",
        library="flashinfer.mla",
        capabilities=((8, 0), (9, 0)),
        queries=(1, 1),
        head_dims=(HeadDims((576, 576), (512, 512), latents=True),),
        features=frozenset({"kv_lengths", "apart", "interleaved"}),
    ),
    Row(
        DECODE,
        "cuda",
        "float32 partials; pages, lengths and positions as they are; one launch that writes into the send buffer",
        library="triton",
        queries=(1, FEW_QUERIES),
        head_dims=(HeadDims((1, 256), (1, 256)), HeadDims((1, 576), (1, 576), sixteen_bits=True)),
        features=ANYTHING - {"merge", "strided"},
    ),
    Row(
        PREFILL,
        "cuda",
        "any positions, masks and windows; merges onto a partial in the same launch",
        library="triton",
        mixed=True,
        head_dims=(HeadDims((1, 512), (1, 512)),),
        features=ANYTHING - {"block_tables"},
    ),
    _torch_row(
        TORCH_AMX,
        reason="torch's fused kernel where the processor multiplies matrices of bfloat16 (AMX)",
        library="torch.amx",
        dtypes=frozenset({"bfloat16"}),
        queries=(FEW_QUERIES + 1, None),
    ),
    Row(
        ROWS,
        "cpu",
        "compiled; takes all that a call may ask, and computes what is visible",
        library="native",
        mixed=True,
        features=ANYTHING - {"merge", "strided"},
    ),
    _torch_row(
        TORCH_CPU,
        reason="torch's fused kernel: several times as fast as products block by block",
        library="torch",
        queries=(1, None),
    ),
    Row(
        BLOCKS,
        "cpu",
        "products of torch, block by block: takes everything",
        mixed=True,
        features=ANYTHING - {"merge"},
    ),
)
"""The kernels of each device, the first that takes a call is chosen; the last takes what is left, or refuses it in
words. Facts of FlashAttention-3: hopper/flash_api.cpp (head dims, dtypes, qv); of cuDNN: pytorch
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and cudnn/MHA.cpp; of FlashInfer: csrc/single_prefill.cu (keys and
values of the same strides), flashinfer/prefill.py, decode.py and mla/_core.py; prefill.cuh, mla.cuh and mla_hopper.cuh
fill with zeros what lies beyond the length of an entry, so that NaN there does not spread."""


def choose(call: Call, machine: Machine, *, skip: frozenset[str] = frozenset()) -> Choice:
    """Return the first kernel of the table, but those of `skip`, that takes the call; else the device's last one."""
    passed: list[tuple[str, str]] = []
    rows = [row for row in TABLE if row.device == call.device]
    for row in rows:
        refused = "left out" if row.name in skip else refusal(row, call, machine)
        if refused is None:
            return Choice(row, tuple(passed))
        passed.append((row.name, refused))
    return Choice(rows[-1], tuple(passed[:-1]))


def refusal(row: Row, call: Call, machine: Machine) -> str | None:
    """Why a kernel does not take a call on a machine; None: it does."""
    return next(chain(_of_the_machine(row, machine), _of_the_call(row, call)), None)


def unusable(row: Row, machine: Machine) -> str | None:
    """Why a kernel takes no call at all on a machine; None: it takes some."""
    return next(_of_the_machine(row, machine), None)


def _of_the_machine(row: Row, machine: Machine) -> Iterator[str]:
    if row.library is not None:
        package = row.library.partition(".")[0]
        yield from (machine.missing[name] for name in (package, row.library) if name in machine.missing)
    limits, capability = row.capabilities, machine.capability
    if limits is not None and (capability is None or not limits[0] <= capability <= limits[1]):
        first, last = (f"{major}.{minor}" for major, minor in limits)
        this = "none of NVIDIA's" if capability is None else f"{capability[0]}.{capability[1]}"
        yield f"is for compute capability {first if first == last else f'{first} to {last}'}, this is {this}"


def _of_the_call(row: Row, call: Call) -> Iterator[str]:
    few, most = row.queries
    if call.q_len < few:
        yield f"is for {few} queries and more"
    if most is not None and call.q_len > most:
        yield f"is for up to {most} queries"
    if call.n < row.keys:
        yield f"needs {row.keys} key{'s' if row.keys > 1 else ''}"
    if row.keys and 0 in (call.batch, call.heads):
        yield "takes no empty batch"
    if row.entries is not None and call.batch > row.entries:
        yield f"is for a batch of {row.entries}"
    if row.head_dims and not any(dims.take(call) for dims in row.head_dims):
        yield f"takes no heads of {call.d} with values of {call.d_v}"
    of_q, of_k = call.dtypes
    if row.rounds and call.exact and of_q in SIXTEEN_BITS:
        yield f"rounds out to {of_q}"
    if of_q not in row.dtypes or (of_q != of_k and not row.mixed):
        yield f"takes no {of_q}" if of_q == of_k else f"takes no {of_q} with {of_k}"
    for feature, name in FEATURES.items():
        if feature in call.features and feature not in row.features:
            yield f"takes no {name}"
