"""All-to-alls of a grid: every head of every token where it belongs, and back."""

import pytest
import torch

from attention.ulysses import head_exchange
from attention.ulysses.head_exchange import HeadExchange, PairCalls
from attention.ulysses.head_grid import HeadGrid
from attention.ulysses.token_rows import Part, TokenRows
from tests.thinning import thinned
from topocomm import run_local

CPU = torch.device("cpu")


def whole(heads, tokens):
    """[1, heads, tokens, 2]: which head and which token it is."""
    return torch.stack(torch.meshgrid(torch.arange(heads), torch.arange(tokens), indexing="ij"), -1).float()[None]


@pytest.mark.parametrize(
    ("sizes", "ring", "heads"),
    thinned([([3, 0, 2, 4], 1, 6), ([3, 0, 2, 4], 2, 3), ([0, 0, 5], 1, 2), ([2, 1], 1, 1), ([1, 1], 2, 3)]),
)
def test_there_and_back(sizes, ring, heads):
    grid, first = HeadGrid(len(sizes), ring, heads, heads), [sum(sizes[:rank]) for rank in range(len(sizes))]
    layouts = [
        TokenRows(1, (Part("x", stop - start, 2, torch.float32),))
        for start, stop in map(grid.heads_of, range(grid.width))
    ]
    everything = whole(heads, sum(sizes))

    def on_rank(comm):
        exchange = HeadExchange(PairCalls(comm), grid, comm.rank, sizes)
        own = everything[:, :, first[comm.rank] : first[comm.rank] + sizes[comm.rank]]
        cut = [{"x": own[:, slice(*grid.heads_of(place))]} for place in range(grid.width)]
        table = exchange.to_heads(layouts, cut, CPU)
        got = layouts[exchange.place].views(table)["x"].clone()
        back = exchange.to_tokens(layouts, table.clone())
        return got, torch.cat([x["x"] for x in back], 1)

    for rank, (got, back) in enumerate(run_local(on_rank, ranks=len(sizes))):
        members = grid.members(grid.group(rank))
        start = first[members[0]]
        tokens = slice(start, start + sum(sizes[member] for member in members))
        assert torch.equal(got, everything[:, slice(*grid.heads_of(grid.place(rank))), tokens])
        assert torch.equal(back, everything[:, :, first[rank] : first[rank] + sizes[rank]])


def test_calls_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(head_exchange, "MOST_CALLS", 2)

    def on_rank(comm):
        calls, prepared = PairCalls(comm), []
        prepare = comm.prepare
        comm.prepare = lambda *given, **named: prepared.append(named["like"].shape[0]) or prepare(*given, **named)
        for pieces in (1, 2, 1, 3, 1, 2):
            sent = torch.full((2 * pieces, 2), comm.rank)
            received = torch.empty_like(sent)
            calls.run([[pieces] * 2] * 2, sent, received)
            assert received[:, 0].tolist() == [0] * pieces + [1] * pieces
        return prepared

    assert run_local(on_rank, ranks=2) == [[2, 4, 6, 4]] * 2, "2 was used longest ago when 3 came"
