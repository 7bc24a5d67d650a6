"""Values that laws are tried on."""

import numpy as np
import pytest

from attention import LOGSUMEXP
from topocomm import MAX, TOPK, Field, Operator, OperatorError, check_laws

X = "x"


def operator(rule, identity=0, *, commutative=False, dtype=None, **more):
    return Operator(
        "planted",
        (Field(X, dtype=dtype),),
        lambda a, b: {X: rule(a[X], b[X])},
        {X: identity},
        commutative=commutative,
        **more,
    )


def test_the_same_seed_tries_the_same_values():
    texts = [str(check_laws(operator(lambda a, b: (a + b) / 2, commutative=True), seed=seed)) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_dims_and_dtypes_are_the_caller_s():
    assert "out float32 [40, 5], lse float32 [40]" in check_laws(LOGSUMEXP, dims={"dim": 5}, samples=40).layout
    assert check_laws(LOGSUMEXP).ok
    with pytest.raises(OperatorError, match=r"operator 'attention.logsumexp' has no axis 'k', only \['dim'\]"):
        check_laws(LOGSUMEXP, dims={"k": 5})
    with pytest.raises(OperatorError, match="operator 'max' takes integers, floats and bool, got complex64"):
        check_laws(MAX, dtype=np.complex64)
    with pytest.raises(OperatorError, match="takes rows of 8 items, got 5"):
        check_laws(TOPK(8), dims={"k": 5})
    with pytest.raises(OperatorError, match="cannot sample datetime64"):
        check_laws(operator(np.maximum, dtype="M8[s]"))
