"""The all-to-alls of a grid: tables of rows from tokens to heads and back, prepared once for each size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from attention.decode.communicators import stream_order_of
from attention.ring.ring_buffers import Scratch
from attention.ulysses.head_grid import HeadGrid
from attention.ulysses.token_rows import UNIT, WORDS_PER_PIECE, TokenRows
from topocomm import Communicator

if TYPE_CHECKING:
    from topocomm import PreparedCall

MOST_CALLS = 16
"""Prepared all-to-alls that a communicator keeps: four are in use where a model trains, more where prompts differ."""
MOST_BYTES = 256 << 20
"""Of the values that they move on a rank, all together; one call is kept whatever its size."""
Tensors = Mapping[str, torch.Tensor]


class PairCalls:
    """Prepared all-to-alls of one communicator, by how much goes from each rank to each."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm
        self._calls: OrderedDict[tuple[tuple[int, ...], torch.device], PreparedCall] = OrderedDict()
        self._scratch = Scratch()

    def memory(self, name: str, rows: int, words: int, device: torch.device) -> torch.Tensor:
        """Return an uninitialised table [rows, words] on a device, in memory that is used again."""
        return self._scratch.view(name, (rows, words), device, UNIT)

    def run(self, pairs: list[list[int]], sent: torch.Tensor, received: torch.Tensor) -> None:
        """Send pieces [pieces, words of a piece] in rank order, and receive the others'; collective.

        `pairs` has the number of pieces from each rank to each, the same on all ranks. Nothing is done where all are 0.
        """
        flat = tuple(count for row in pairs for count in row)
        if not any(flat):
            return
        if sent.device.type != "cpu":
            stream_order_of(self._comm).acquire(sent.device)
        key = flat, sent.device
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._comm.prepare("alltoall", like=sent, rows=pairs[self._comm.rank])
            self._drop_oldest()
        self._calls.move_to_end(key)
        call(sent, out=received)

    def _drop_oldest(self) -> None:
        """By figures that are the same on all ranks."""
        kept_bytes = sum(call.plan.payload_bytes for call in self._calls.values())
        while len(self._calls) > 1 and (len(self._calls) > MOST_CALLS or kept_bytes > MOST_BYTES):
            _, call = self._calls.popitem(last=False)
            kept_bytes -= call.plan.payload_bytes
            call.free()


@dataclass(frozen=True)
class HeadExchange:
    """What a rank sends and receives in its group, for one division of tokens.

    Attributes:
        calls: Of the communicator of all ranks.
        grid: Who has which heads.
        rank: This one.
        sizes: Tokens of every rank.
    """

    calls: PairCalls
    grid: HeadGrid
    rank: int
    sizes: Sequence[int]

    @property
    def place(self) -> int:
        """Place of this rank in its group."""
        return self.grid.place(self.rank)

    @property
    def members(self) -> range:
        """Ranks of this rank's group."""
        return self.grid.members(self.grid.group(self.rank))

    @property
    def tokens(self) -> int:
        """Tokens of the group."""
        return sum(self.sizes[rank] for rank in self.members)

    def memory(self, name: str, rows: int, words: int, device: torch.device) -> torch.Tensor:
        """As `PairCalls.memory`."""
        return self.calls.memory(name, rows, words, device)

    def to_heads(self, layouts: Sequence[TokenRows], tensors: Sequence[Tensors], device: torch.device) -> torch.Tensor:
        """Send this rank's tokens to those that have the heads, and return its heads of the group's tokens; collective.

        Args:
            layouts: Of the rows for each place of the group.
            tensors: For each place, tensors of its heads [batch, heads, tokens of this rank, dim].
            device: Of the tensors.

        Returns:
            A table of rows [tokens of the group, words], in the order of ranks; used again by the next call.
        """
        own, words = self.sizes[self.rank], [layout.words for layout in layouts]
        sent, start = self.memory("sent", 1, own * sum(words), device).view(-1), 0
        for layout, of_place in zip(layouts, tensors, strict=True):
            table = sent[start : start + own * layout.words].view(own, layout.words)
            layout.write(table, of_place)
            start += own * layout.words
        received = self.memory("received", self.tokens, words[self.place], device)
        self._run(sent, received, lambda source, target: self.sizes[source] * layouts[self.grid.place(target)].pieces)
        return received

    def to_tokens(self, layouts: Sequence[TokenRows], table: torch.Tensor) -> list[Tensors]:
        """Send rows back to the ranks whose tokens they are of, and return those of this rank's tokens; collective.

        Args:
            layouts: Of the rows from each place of the group.
            table: This rank's rows [tokens of the group, words], in the order of ranks.

        Returns:
            For each place the tensors [batch, heads, tokens of this rank, dim]; their memory is used again.
        """
        own = self.sizes[self.rank]
        received, start = self.memory("received", 1, own * sum(x.words for x in layouts), table.device).view(-1), 0
        self._run(table, received, lambda source, target: self.sizes[target] * layouts[self.grid.place(source)].pieces)
        found: list[Tensors] = []
        for layout in layouts:
            found.append(layout.views(received[start : start + own * layout.words].view(own, layout.words)))
            start += own * layout.words
        return found

    def _run(self, sent: torch.Tensor, received: torch.Tensor, pieces: Callable[[int, int], int]) -> None:
        grid = self.grid
        ranks = range(grid.ranks)
        pairs = [
            [pieces(source, target) if grid.group(source) == grid.group(target) else 0 for target in ranks]
            for source in ranks
        ]
        self.calls.run(pairs, *(x.view(-1, WORDS_PER_PIECE) for x in (sent, received)))
