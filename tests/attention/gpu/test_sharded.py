"""Sharded attention on GPUs from end to end, every two features together, against the formula in float64."""

from tests.attention.gpu.playing import NothingIsRead, run_on_gpus  # isort: skip

from contextlib import nullcontext

import pytest
import torch

from attention import ring_decode, three_allreduce_decode, tree_decode
from tests.attention.cases import covered, pairwise
from tests.attention.features import FEATURES, made

METHODS = {
    "tree": (tree_decode, {}),
    "canonical": (tree_decode, {"order": "canonical"}),
    "heads": (tree_decode, {"result": "heads"}),
    "16 bits": (tree_decode, {"wire": "bfloat16"}),
    "verified": (tree_decode, {"verify": 1}),
    "ring": (ring_decode, {}),
    "three": (three_allreduce_decode, {}),
}
FACTORS = {
    "method": tuple(METHODS),
    "ranks": (1, 2, 3, 5),
    **FEATURES,
    "told": ("in host memory", "on the GPU"),
    "shape": ((2, 3, 2, 1, 41, 16, 24), (3, 2, 5, 4, 37, 24, 8), (2, 1, 3, 19, 38, 24, 40)),
}
CASES = list(pairwise(FACTORS))
EVERY = 6
"""Of the cases one of so many runs in every test run, the others in the long one."""


def test_pairs_are_covered():
    assert covered(CASES, FACTORS) and len(CASES) < 60


def brought(given):
    """Positions, masks and lengths as tensors, which count as being on the GPU."""
    return {name: x if name == "spec" else torch.as_tensor(x) for name, x in given.items()}


def marked(number, case):
    name = "-".join(str(value) for value in case.values())
    return pytest.param(case, id=name, marks=[pytest.mark.long] if number % EVERY else [])


@pytest.mark.parametrize("case", [marked(*one) for one in enumerate(CASES)])
def test_every_pair_of_features(case):
    this = made({**case, "virtual_shards": 6})
    method, options = METHODS[case["method"]]
    told = {**options, "shards": this.shards} if "order" in options else options

    quiet = case["told"] == "on the GPU" and case["method"] not in ("canonical", "verified") and case["shape"][3] < 17

    def on_rank(comm):
        arguments, given = this.arguments(comm.rank), this.given(comm.rank)
        given = brought(given) if case["told"] == "on the GPU" else given
        first = method(*arguments, comm, return_lse=True, **given, **told)
        with NothingIsRead() if quiet else nullcontext():
            again = method(*arguments, comm, return_lse=True, **given, **told)
        assert all(torch.equal(x, y) for x, y in zip(first, again, strict=True))
        return again

    results = run_on_gpus(on_rank, case["ranks"])
    this.check(results, options, 2**-8 if case["method"] == "16 bits" else 0.0)
    if case["method"] != "heads":
        assert len({b"".join(x.view(torch.uint8).numpy().tobytes() for x in one) for one in results}) == 1
