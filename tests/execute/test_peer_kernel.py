"""The peer kernel on ranks that are processes with Triton's interpreter: bits of the plan, waits, credits, epochs."""

import pytest

from tests.execute.peer_ranks import Ranks

MOST = 4


@pytest.fixture(scope="module")
def ranks():
    made = Ranks(MOST)
    yield made
    made.close()


DTYPES = {"sum": "f4", "prod": "c8", "max": "bfloat16", "min": "f2", "argmax": "f8", "argmin": "f4", "band": "u1",
          "bor": "i8", "bxor": "?", "logaddexp": "f4", "welford": "f8", "affine": "c16"}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_every_operator_has_the_bits_of_the_plan(ranks, name):
    ranks.run(3, "collective", name=name, dtype=DTYPES[name], rows=37)
