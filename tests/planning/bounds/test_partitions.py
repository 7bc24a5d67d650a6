"""Partitions of nested groups: the least of all, tried one by one."""

import numpy as np
import pytest

from topocomm.planning.bounds.partitions import best_of_family


@pytest.mark.parametrize("seed", range(40))
def test_nested_groups_have_their_least_partition(seed):
    """Eight endpoints in four pairs in two fours, with any borders: all ways to choose, tried one by one."""
    chance = np.random.default_rng(seed)
    border = [chance.integers(1, 60, size=count).astype(float) for count in (8, 4, 2)]
    gives = [chance.random(8) < chance.choice([0.3, 1.0])]
    gives[0][0] = True
    gives += [gives[0].reshape(4, 2).any(axis=1), gives[0].reshape(2, 4).any(axis=1)]

    def ways(level, index):
        yield [(level, index)]
        if level:
            yield from ([*a, *b] for a in ways(level - 1, 2 * index) for b in ways(level - 1, 2 * index + 1))

    rates = [
        sum(border[level][index] for level, index in (*a, *b))
        / (len(a) + len(b) + sum(bool(gives[level][index]) for level, index in (*a, *b)) - 2)
        for a in ways(2, 0)
        for b in ways(2, 1)
    ]
    rate, chosen = best_of_family([np.arange(8) // 2, np.arange(4) // 2], border, gives)
    assert rate == pytest.approx(min(rates))
    assert sorted(end for level, index in chosen for end in range(index << level, (index + 1) << level)) == [*range(8)]
