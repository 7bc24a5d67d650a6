"""One call of Ulysses attention on a rank: all-to-all, attention of its heads, all-to-all back; and the transposes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from attention.arrays import Inputs
from attention.decode.communicators import state_of
from attention.partial import Partial
from attention.ring.ring_layout import Parts
from attention.ring.ring_trips import Trips
from attention.ulysses.group_tokens import GroupTokens
from attention.ulysses.head_attention import Gradients, HeadAttention
from attention.ulysses.head_exchange import HeadExchange, PairCalls
from attention.ulysses.head_grid import HeadGrid
from attention.ulysses.head_rows import HeadRows
from attention.ulysses.token_rows import TokenRows
from topocomm import Communicator

STATE = "ulysses_attention"
"""Under this name a communicator keeps the exchanges and rings of its calls."""
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class UlyssesCall:
    """How rows are laid out, where they go and what is computed in between; without the values of the call."""

    rows: HeadRows
    exchange: HeadExchange
    tokens: GroupTokens
    attention: HeadAttention

    @classmethod
    def of(cls, comm: Communicator, grid: HeadGrid, parts: Parts, inputs: Inputs, *, return_lse: bool) -> UlyssesCall:
        """Return the call, with what stays prepared between those of a communicator; collective at its first use."""
        state = state_of(comm).setdefault(STATE, {"pairs": PairCalls(comm)})
        if grid.ring > 1 and grid.ring not in state:
            ring_comm = comm if grid.width == 1 else comm.split(grid.place(comm.rank), grid.group(comm.rank))
            assert ring_comm is not None, "every rank has a color"
            state[grid.ring] = Trips(ring_comm)
        trips, tokens = state[grid.ring] if grid.ring > 1 else None, GroupTokens.of(parts, grid)
        exchange = HeadExchange(state["pairs"], grid, comm.rank, parts.sizes)
        attention = HeadAttention(comm, trips, grid, tokens, inputs.spec)
        return cls(HeadRows.of(grid, inputs, has_lse=return_lse), exchange, tokens, attention)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, keep: bool
    ) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """Return (out, lse) of this rank's tokens, or (out,), and what backward needs; collective.

        That is this rank's heads of q, k and v and their float32 result, where `keep`; else it may be overwritten.
        """
        own = self._to_heads(self.rows.inputs(), {"q": q, "k": k, "v": v}, keep=keep)
        whole = self.attention.forward(own["q"], own["k"], own["v"], exact=keep)
        places = self._to_tokens(self.rows.results(), {"out": whole.out, "lse": whole.lse[..., None]})
        found = {"out": self.rows.empty("out", q.shape[2], self.rows.of_q)}
        if self.rows.has_lse:
            found["lse"] = self.rows.empty("lse", q.shape[2], torch.float32)
        for name, target in found.items():
            for place, of_place in enumerate(places):
                target[:, self.rows.heads(name, place)].copy_(of_place[name])
        result = (found["out"], found["lse"][..., 0]) if self.rows.has_lse else (found["out"],)
        return result, (own["q"], own["k"], own["v"], *whole)

    def backward(self, kept: tuple[torch.Tensor, ...], d_out: torch.Tensor, d_lse: torch.Tensor | None) -> Gradients:
        """Return the gradients of this rank's q, k and v, from what forward kept and those of its results; collective.

        A rank whose lse was not used sends zeros: the other ranks may have used theirs.
        """
        q, k, v, out, lse = kept
        arriving = {"out": d_out}
        if self.rows.has_lse:
            arriving["lse"] = (d_out.new_zeros(d_out.shape[:3]) if d_lse is None else d_lse)[..., None]
        own = self._to_heads(self.rows.results(), arriving, keep=False)
        coming = Partial(own["out"], own["lse"][..., 0] if self.rows.has_lse else None)
        gradients = self.attention.backward((q, k, v), Partial(out, lse), coming)
        layouts = self.rows.inputs(self.rows.of_kv_sums)
        found = {part.name: self.rows.empty(part.name, d_out.shape[2], part.dtype).zero_() for part in layouts[0].parts}
        for place, of_place in enumerate(self._to_tokens(layouts, dict(zip("qkv", gradients, strict=True)))):
            for name, target in found.items():
                target[:, self.rows.heads(name, place)].add_(of_place[name])
        return found["q"], found["k"].to(self.rows.of_kv), found["v"].to(self.rows.of_kv)

    def _to_heads(self, layouts: list[TokenRows], tensors: Tensors, *, keep: bool) -> Tensors:
        """Return this rank's heads of tensors [batch, all heads, tokens of this rank, dim], in sequence order."""
        of_places = [
            {name: x[:, self.rows.heads(name, place)] for name, x in tensors.items()} for place in range(len(layouts))
        ]
        received = self.exchange.to_heads(layouts, of_places, self.rows.device)
        table = self.tokens.sorted(received)
        return layouts[self.exchange.place].views(received.clone() if keep and table is received else table)

    def _to_tokens(self, layouts: list[TokenRows], tensors: Tensors) -> list[Tensors]:
        """Return for each place its heads of this rank's tokens, from this rank's heads in sequence order."""
        layout = layouts[self.exchange.place]
        table = self.exchange.memory("heads", self.exchange.tokens, layout.words, self.rows.device)
        layout.write(table, tensors)
        return self.exchange.to_tokens(layouts, self.tokens.as_received(table))
