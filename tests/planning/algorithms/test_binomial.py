"""Binomial trees: the fewest rounds and messages for any root."""

import pytest

from tests.planning.algorithms.offered import messages, offered, takes


@pytest.mark.parametrize(("name", "times"), [("reduce", 1), ("broadcast", 1), ("allreduce", 2)])
def test_rounds(name, times):
    takes(name, "binomial", lambda ranks: times * (ranks - 1).bit_length())


@pytest.mark.parametrize("root", range(7))
def test_every_other_rank_sends_or_receives_once(root):
    reduce, broadcast = (messages(offered(name, "binomial", 7, root=root)) for name in ("reduce", "broadcast"))
    others = [rank for rank in range(7) if rank != root]
    assert sorted(src for _, src, _ in reduce) == others
    assert sorted(dst for _, _, dst in broadcast) == others
