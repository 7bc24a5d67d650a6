"""Bits that agree are told as agreeing, and an operator that makes other bits each time is found."""

import numpy as np
import pytest

from attention import LOGSUMEXP
from tests.bench.operators import DITHER, ENDS
from tests.thinning import alternating
from topocomm import SUM, Operator, run_local
from topocomm.bench.bits import prove_canonical, prove_order_any
from topocomm.bench.problem import make_problem


def outcome(prove, operator, rows, ranks=3):
    told = run_local(lambda comm: prove(comm, make_problem("allreduce", operator, rows, ranks)), ranks=ranks)
    assert len({(one.digest, one.results, one.difference) for one in told}) == 1, "all ranks tell the same"
    return told[0]


@pytest.mark.parametrize(("prove", "operator"), alternating([prove_order_any, prove_canonical], [SUM, LOGSUMEXP, ENDS]))
def test_the_same_bits(prove, operator):
    proof = outcome(prove, operator, 33)
    assert proof.difference is None
    assert len(proof.digest) == 64
    assert proof.results >= 16


def test_canonical_order_has_other_bits_than_any_order_but_its_own_always():
    proofs = [outcome(prove_canonical, SUM, 1000, ranks) for ranks in (1, 2, 5)]
    assert len({proof.digest for proof in proofs}) == 1


@pytest.mark.parametrize("prove", [prove_order_any, prove_canonical])
def test_an_operator_that_adds_noise_is_found(prove):
    found = outcome(prove, DITHER, 64, ranks=2).difference
    assert found is not None
    assert found.field == "value"
    assert found.value != found.reference
    assert f"rank {found.rank}" in str(found)
    assert f"element {found.element} of field 'value'" in str(found)


def test_a_difference_in_bits_alone_is_found():
    """-0 equals +0, and is not the same."""
    calls = iter(range(10**6))

    def combine(left, right):
        zero = np.zeros_like(left["value"])
        return {"value": -zero if next(calls) == 7 else zero}

    fields = SUM.fields[0]._replace(dtype=np.float32)
    found = outcome(prove_order_any, Operator("zero", (fields,), combine, {"value": 0}, True), 4, ranks=2).difference
    assert found is not None
    assert "0x80000000" in (found.value + found.reference)
