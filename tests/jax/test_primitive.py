"""How the primitive is traced: on one rank, without a job."""

import pytest

jax = pytest.importorskip("jax", reason="needs jax: make test-jax")

import jax.numpy as jnp  # noqa: E402

from topocomm import SUM, OperatorError, run_local  # noqa: E402
from topocomm.jax.host_side import Collective  # noqa: E402
from topocomm.jax.primitive import ORDERED, bind  # noqa: E402


@pytest.fixture
def comm():
    return run_local(lambda comm: comm, ranks=1)[0]


def test_calls_are_kept_in_order_though_nobody_uses_them(comm):
    def program(x):
        bind(Collective("allreduce", comm, SUM), [x])
        return x

    traced = jax.make_jaxpr(program)(jnp.ones(2))
    assert traced.effects == {ORDERED} and "topocomm_collective" in str(traced)
    assert "custom_call" in jax.jit(program).lower(jnp.ones(2)).as_text()


def test_shapes_are_checked_where_it_is_traced(comm):
    with pytest.raises(OperatorError, match="got a scalar"):
        jax.jit(lambda x: bind(Collective("allgather", comm), [x]))(jnp.float32(1))


def test_the_transpose_of_a_sum_moves_nothing_and_that_of_its_transpose_sums(comm):
    def sums(x):
        return bind(Collective("allreduce", comm, SUM), [x])[0]

    once = jax.linear_transpose(sums, jnp.ones(2))
    traced = str(jax.make_jaxpr(once)(jnp.ones(2)))
    assert "topocomm_share" in traced and "topocomm_collective" not in traced
    twice = jax.linear_transpose(lambda x: once(x)[0], jnp.ones(2))
    assert "topocomm_collective" in str(jax.make_jaxpr(twice)(jnp.ones(2)))
