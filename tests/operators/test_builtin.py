"""Every built-in operator against its definition in float64 or exact integers."""

import tomllib
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import topocomm
from tests.operators.packed import BFLOAT16, NAMES, PAIRS, fold, layout_of
from topocomm import (
    AFFINE_MATRIX,
    TOPK,
    Operator,
    check_laws,
)

UNIT = {np.dtype("f8"): 2.0**-53, np.dtype("f4"): 2.0**-24, np.dtype("f2"): 2.0**-11, BFLOAT16: 2.0**-8}
SHAPES = [(), (0,), (1,), (3, 5), (2, 0, 3), (1, 17, 1)]
ids = {"ids": str}


def ordinary(rng, dtype, shape):
    return np.asarray(rng.normal(size=shape)).astype(dtype)


def value_fold(operator, arrays, **names):
    layout = layout_of(operator, arrays[0].dtype, arrays[0].shape)
    return fold(operator, layout, [{"value": array} for array in arrays], **names)["value"]


@pytest.mark.parametrize(("operator", "dtype"), PAIRS, ids=NAMES)
def test_laws_hold_for_every_dtype(operator, dtype):
    report = check_laws(operator, dtype=dtype, samples=96)
    assert report.ok, report
    assert {law.name for law in report.laws} >= {"identity", "associativity", "commutativity"}


def test_every_operator_has_a_name_in_the_package_table():
    table = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["entry-points"]
    named = {}
    for name, place in table["topocomm.operators"].items():
        module, attribute = place.split(":")
        found = getattr(import_module(module), attribute)
        named[name] = found if isinstance(found, Operator) else found(3)
        assert named[name].name.split("(")[0] == name
    public = {
        x for x in map(partial(getattr, topocomm), filter(str.isupper, topocomm.__all__)) if isinstance(x, Operator)
    }
    assert public | {TOPK(3), AFFINE_MATRIX(3)} == set(named.values()) - {import_module("attention").LOGSUMEXP}
