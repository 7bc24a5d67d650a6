"""Layouts of a sequence over ranks, and the blocks of queries and keys that have to be computed.

Contiguous is the layout of Liu et al. (2023). Zigzag, also called head-tail, gives rank r the chunks r and 2P - 1 - r
of 2P, so that causal work is the same on every rank; prior art: Megatron-LM, ring-flash-attention, and the head-tail
balancer of torch's context parallelism. Striped (Brandon et al., "Striped Attention", 2023, arXiv 2311.09431) or any
other layout is given by its positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention.arrays import DTYPES, Inputs
from attention.gpu.placement import on_gpu, on_host
from attention.spec import Spec
from attention.visibility import Visibility
from topocomm import Communicator, MismatchError, OperatorError

LAYOUTS = ("contiguous", "zigzag")

MOST_PIECES = 4
"""A part with more runs of consecutive positions than this is attended whole: zigzag has two, random order many."""

AGREED = ("layout", "gradients", "memory", "spec", "batch", "heads", "d", "kv_heads", "d_v", "dtype of k and v")

NO_CHOICES: Mapping[str, int] = MappingProxyType({})


def sequence_slices(layout: str, length: int, ranks: int, rank: int) -> list[slice]:
    """Return the parts of a sequence that a rank holds, in its order: one slice, or two in zigzag.

    For arrays `x[:, :, np.r_[*sequence_slices(...)]]` is the rank's part.

    Args:
        layout: "contiguous" or "zigzag".
        length: Tokens of the whole sequence, any number: chunks differ by one token at most and may be empty.
        ranks: How many ranks.
        rank: Which one.

    Raises:
        OperatorError: There is no such layout or rank.
    """
    if layout not in LAYOUTS:
        raise OperatorError(f"sequence_slices: layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    if length < 0 or not 0 <= rank < ranks:
        raise OperatorError(
            f"sequence_slices: expected length >= 0 and a rank from 0 to ranks - 1, got length {length}, rank {rank}, "
            f"ranks {ranks}"
        )
    count, chunks = (ranks, [rank]) if layout == "contiguous" else (2 * ranks, [rank, 2 * ranks - 1 - rank])
    return [slice(length * chunk // count, length * (chunk + 1) // count) for chunk in chunks]


@dataclass(frozen=True)
class Parts:
    """Where the tokens of all ranks lie; the same on every rank.

    Attributes:
        positions: Of every rank, int64 [n_local].
        pieces: Of every rank, slices of its tokens that are attended apart: chunks, or runs of consecutive positions.
    """

    rank: int
    spec: Spec
    positions: list[torch.Tensor]
    pieces: list[list[slice]]

    @property
    def sizes(self) -> list[int]:
        """Tokens per rank."""
        return [len(x) for x in self.positions]

    def blocks(self, source: int) -> list[tuple[slice, slice, Visibility | None]]:
        """Return what is computed with the keys of rank `source`: (queries, keys, which see which), piece by piece.

        Pairs of pieces of which no query sees a key are left out: that is what makes zigzag balanced.
        """
        blocks = []
        for rows in self.pieces[self.rank]:
            for part in self.pieces[source]:
                visibility = None
                if self.spec.needs_positions:
                    queries, keys = self.positions[self.rank][None, rows], self.positions[source][None, part]
                    visibility = Visibility.of(self.spec, queries, keys)
                if visibility is None or (
                    visibility.keys.min() <= visibility.high.max() and visibility.keys.max() >= visibility.low.min()
                ):
                    blocks.append((rows, part, visibility))
        return blocks


# What ranks agree on are the arguments of a public interface.
def agree_on_parts(
    function: str,
    comm: Communicator,
    inputs: Inputs,
    *,
    positions: Any,
    layout: str,
    gradients: bool,
    choices: Mapping[str, int] = NO_CHOICES,
) -> Parts:
    """Return the parts of all ranks, from their sizes and the layout or from the positions given; collective.

    `choices` are further numbers, by name, that must be the same on all ranks; every rank has the same names.

    Raises:
        OperatorError: This rank's positions or layout do not fit its tokens.
        MismatchError: Ranks differ in what they must agree on, or their parts do not make up a sequence; on all ranks.
    """
    n = inputs.q.shape[2]
    own = None if positions is None else torch.as_tensor(on_host(positions))
    if own is not None and (own.dtype == torch.bool or own.is_floating_point() or own.shape != (n,)):
        raise OperatorError(
            f"{function}: positions must be integers [{n}], one for each of this rank's tokens, got "
            f"{own.dtype} {list(own.shape)}"
        )
    if layout not in LAYOUTS:
        raise OperatorError(f"{function}: layout must be one of {', '.join(LAYOUTS)}, got {layout!r}")
    form = LAYOUTS.index(layout) if own is None else -1
    batch, heads, _, d = inputs.q.shape
    shape = (batch, heads, d, inputs.k.shape[1], inputs.v.shape[3], DTYPES.index(inputs.k.dtype))
    digest = int.from_bytes(hashlib.blake2b(repr(inputs.spec).encode(), digest_size=7).digest())
    own_record = [n, form, gradients, on_gpu(inputs.q), digest, *shape, *choices.values()]
    records = _gathered(comm, np.array(own_record, np.int64))
    _check_agreement(function, comm.rank, records, (*AGREED, *choices))
    sizes = [int(record[0]) for record in records]
    if own is None:
        if layout == "zigzag":
            for rank, size in enumerate(sizes):
                expected = sum(s.stop - s.start for s in sequence_slices(layout, sum(sizes), comm.size, rank))
                if size != expected:
                    raise MismatchError(
                        f"rank {comm.rank}: {function}: of {sum(sizes)} tokens rank {rank} should hold {expected} in "
                        f"zigzag, but holds {size}; cut the sequence by sequence_slices, or give positions"
                    )
        return Parts(comm.rank, inputs.spec, *_of_layout(layout, tuple(sizes)))
    padded = np.zeros(max(sizes), np.int64)
    padded[:n] = own.to(torch.int64).numpy()
    everyones = _gathered(comm, padded) if sum(sizes) else [[]] * comm.size
    everywhere = [np.array(x[:size], np.int64) for x, size in zip(everyones, sizes, strict=True)]
    _check_sequence(function, comm.rank, everywhere)
    return Parts(comm.rank, inputs.spec, [torch.from_numpy(x) for x in everywhere], [pieces_of(x) for x in everywhere])


def _gathered(comm: Communicator, record: NDArray[np.int64]) -> list[Any]:
    return [note.view(np.int64) for note in comm.allgather_bytes(record.view(np.uint8))]


def _check_agreement(function: str, rank: int, records: list[Any], names: tuple[str, ...]) -> None:
    for other, record in enumerate(records):
        differing = [
            name if name in ("layout", "gradients", "memory", "spec") else f"{name} ({value}, not {expected})"
            for name, value, expected in zip(names, record[1:].tolist(), records[0][1:].tolist(), strict=True)
            if value != expected
        ]
        if differing:
            others = [i for i, row in enumerate(records) if (row[1:] != records[0][1:]).any()]
            hint = "; whether positions are given counts as layout" if "layout" in differing else ""
            raise MismatchError(
                f"rank {rank}: {function}: ranks {others} differ from rank 0; rank {other} in "
                f"{', '.join(differing)}{hint}"
            )


@lru_cache(maxsize=8)
def _of_layout(layout: str, sizes: tuple[int, ...]) -> tuple[list[torch.Tensor], list[list[slice]]]:
    """Positions and pieces of all ranks; kept, so that the layers of a model share them until their backward."""
    if layout == "contiguous":
        held = [[slice(first, last)] for first, last in pairwise(accumulate(sizes, initial=0))]
    else:
        held = [sequence_slices(layout, sum(sizes), len(sizes), rank) for rank in range(len(sizes))]
    positions = [torch.from_numpy(np.r_[*slices]) for slices in held]
    return positions, [_laid_out([s.stop - s.start for s in slices]) for slices in held]


def _check_sequence(function: str, rank: int, positions: list[NDArray[np.int64]]) -> None:
    """All positions must be 0 to N - 1, each once: nothing overlaps and nothing is missing."""
    length = sum(len(x) for x in positions)
    expected = f"rank {rank}: {function}: positions of all ranks must be 0 to {length - 1}, each once; "
    for other, of_rank in enumerate(positions):
        beyond = of_rank[(of_rank < 0) | (of_rank >= length)]
        if beyond.size:
            raise MismatchError(f"{expected}rank {other} has {beyond[0]}")
    counts = np.bincount(np.concatenate(positions), minlength=length)
    if (counts > 1).any():
        twice = int((counts > 1).argmax())
        holders = [other for other, of_rank in enumerate(positions) for _ in range((of_rank == twice).sum())]
        raise MismatchError(f"{expected}{twice} is held by ranks {holders}, {int((counts == 0).argmax())} by none")


def pieces_of(positions: NDArray[np.int64]) -> list[slice]:
    """Return the slices of tokens at these positions that are attended apart."""
    return _laid_out(_runs(positions))


def _runs(positions: NDArray[np.int64]) -> list[int]:
    """Lengths of the runs of consecutive positions; one for all where there are too many."""
    edges = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    return np.diff(edges).tolist() if len(edges) <= MOST_PIECES + 1 else [len(positions)]


def _laid_out(lengths: list[int]) -> list[slice]:
    """Slices of these lengths, one after the other, without the empty ones."""
    return [slice(first, last) for first, last in pairwise(accumulate(lengths, initial=0)) if last > first]
