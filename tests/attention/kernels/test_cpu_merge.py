"""The merge of partials in C."""

import hashlib

import numpy as np

from attention import LOGSUMEXP
from attention.kernels.cpu_merge import bind
from tests.operators.packed import bits, fold

SHAPES = ((1, 1, 2), (3, 5, 3), (32, 128, 2), (257, 64, 4), (600, 3, 5))
"""Rows, dim and operands."""
DIGEST = "66a86eba1a27095d91c9212cfadcf9dba351c110b5553d936d3a8f1a09ac4921"
"""Of what the kernel by numba gave that was here before."""


def cases():
    for rows, dim, count in SHAPES:
        rng = np.random.default_rng(rows)
        layout = LOGSUMEXP.layout({"out": ((rows, dim), np.float32), "lse": ((rows,), np.float32)})
        yield layout, [LOGSUMEXP.sample(rng, layout) for _ in range(count)]


def test_its_bits_do_not_change():
    digest = hashlib.sha256()
    for layout, values in cases():
        made = fold(LOGSUMEXP, layout, values)
        digest.update(bits(made["out"]) + bits(made["lse"]))
    assert digest.hexdigest() == DIGEST


def test_a_bound_fold_gives_the_same_bits():
    for layout, values in cases():
        want = fold(LOGSUMEXP, layout, values)
        merge = bind([(value["out"], value["lse"]) for value in values])
        for _ in range(2):
            made = {name: np.zeros_like(array) for name, array in want.items()}
            merge(made)
            assert all(bits(made[name]) == bits(array) for name, array in want.items())
        merge(values[0])  # into the first operand
        assert all(bits(values[0][name]) == bits(array) for name, array in want.items())
