"""Merges by heads between processes, over torch's gloo groups, as engines make them."""

from pathlib import Path

import pytest

from tests.torch_jobs import by_hand

PROGRAM = Path(__file__).parent / "programs/merges.py"


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.long) for ranks in (3, 4, 5, 8))])
def test_merges_are_those_of_the_formula(ranks):
    few = ["few"] if ranks == 2 else []
    jobs = by_hand(ranks, [PROGRAM, *few], timeout_s=120)
    count = 10 if few else 150
    assert [out for out, _, _ in jobs] == [f"[{rank}] {count} merges\n" for rank in range(ranks)], jobs[0][1][-3000:]
    assert not any(status for _, _, status in jobs)
