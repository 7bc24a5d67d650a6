"""A Spec compares by value, whatever kind of array it was given, and refuses figures that make no attention."""

import math

import numpy as np
import pytest
import torch

from attention import Spec
from topocomm import OperatorError


def test_arrays_become_tuples():
    values = [0.5, 0.25]
    specs = {Spec(alibi_slopes=kind(values), sinks=kind(values)) for kind in (list, tuple, np.array, torch.tensor)}
    assert specs == {Spec(alibi_slopes=(0.5, 0.25), sinks=(0.5, 0.25))}


def test_scale_and_what_needs_positions():
    assert Spec().scale_for(64) == 0.125 and Spec(scale=2.0).scale_for(64) == 2.0
    needs = [Spec(causal=True), Spec(window=3), Spec(alibi_slopes=[1.0])]
    assert all(spec.needs_positions for spec in needs)
    assert not any(spec.needs_positions for spec in (Spec(), Spec(scale=1.0), Spec(softcap=1.0), Spec(sinks=[0.0])))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"scale": math.inf}, "scale must be finite, got inf"),
        ({"window": 0}, "window must be a number of keys, 1 or more, got 0; None: no window"),
        ({"window": 2.5}, "window must be a number of keys"),
        ({"window": True}, "window must be a number of keys"),
        ({"softcap": 0.0}, "softcap must be positive and finite, got 0.0; None: no cap"),
        ({"alibi_slopes": []}, "alibi_slopes must be one number per head, got []"),
        ({"sinks": [math.nan]}, "sinks must be one number per head"),
        ({"sinks": [math.inf]}, "sinks must be one number per head"),
    ],
)
def test_what_is_no_attention_is_named(given, said):
    with pytest.raises(OperatorError) as error:
        Spec(**given)
    assert str(error.value).startswith(f"Spec: {said}")


def test_a_sink_of_minus_infinity_adds_nothing():
    assert Spec(sinks=[-math.inf]).sinks == (-math.inf,)
