"""Collectives of JAX arrays on every rank: `mpirun -n N python collectives.py`, or by torchrun; each case asserts."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import topocomm
from attention import LOGSUMEXP
from topocomm import LOGADDEXP, MAX, MIN, PROD, SUM, WELFORD, Field, Operator, TopocommError
from topocomm.jax import allgather, allreduce, alltoall, broadcast, reduce_scatter

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def values(comm, make):
    """What every rank has."""
    return [make(rank) for rank in range(comm.size)]


def draw(rank, *shape, dtype=np.float32):
    return (np.random.default_rng(rank).integers(-8, 9, shape) / 4).astype(dtype)


def both(function, *args):
    """The result now and compiled, which must be the same bits."""
    now, compiled = function(*args), jax.jit(function)(*args)
    for left, right in zip(jax.tree.leaves(now), jax.tree.leaves(compiled), strict=True):
        assert isinstance(right, jax.Array) and left.dtype == right.dtype and left.shape == right.shape
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right))
    assert jax.tree.structure(now) == jax.tree.structure(compiled)
    return compiled


@case
def dtypes_and_operators(comm):
    wide = (jnp.float64, jnp.int64) if jax.config.jax_enable_x64 else ()
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint8, jnp.complex64, *wide):
        whole = [jnp.asarray(draw(rank, 3, 5).round() % 3, dtype) for rank in range(comm.size)]
        kinds = [(SUM, jnp.sum), (PROD, jnp.prod)]
        kinds += [] if dtype == jnp.complex64 else [(MAX, jnp.max), (MIN, jnp.min)]
        every = both(lambda x, kinds=kinds: [allreduce(x, operator, comm) for operator, _ in kinds], whole[comm.rank])
        for found, (_, fold) in zip(every, kinds, strict=True):
            assert found.dtype == dtype
            expected = fold(jnp.stack(whole), axis=0).astype(dtype)
            np.testing.assert_allclose(np.asarray(found, complex), np.asarray(expected, complex), rtol=0.02)


@case
def pytrees_and_shapes(comm):
    def tree(rank):
        return {
            "big": draw(rank, 40_000),
            "small": [draw(rank, 2, 3), draw(rank), np.int32(rank)],
            "none": draw(rank, 0, 4),
            "short": jnp.asarray(draw(rank, 7), jnp.bfloat16),
        }

    found = both(lambda x: allreduce(x, SUM, comm), tree(comm.rank))
    expected = jax.tree.map(lambda *parts: sum(jnp.asarray(part) for part in parts), *values(comm, tree))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), 1e-2), found, expected
    )
    found = both(lambda x: broadcast(x, comm, root=comm.size - 1), tree(comm.rank))
    jax.tree.map(np.testing.assert_array_equal, found, tree(comm.size - 1))


@case
def fields(comm):
    def partial(rank):
        return {"out": draw(rank, 2, 3, 8), "lse": draw(rank, 2, 3)}

    merged = both(lambda x: allreduce(x, LOGSUMEXP, comm), partial(comm.rank))
    lse = np.stack([part["lse"] for part in values(comm, partial)])
    out = np.stack([part["out"] for part in values(comm, partial)])
    weights = np.exp(lse - np.logaddexp.reduce(lse))
    np.testing.assert_allclose(merged["out"], (weights[..., None] * out).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(merged["lse"], np.logaddexp.reduce(lse), rtol=1e-5)
    mine = comm.allreduce(partial(comm.rank), LOGSUMEXP)
    np.testing.assert_array_equal(merged["out"], mine["out"])
    moments = both(lambda x: allreduce(x, WELFORD, comm), {"count": 1.0, "mean": float(comm.rank), "m2": 0.0})
    assert float(moments["mean"]) == (comm.size - 1) / 2
    part = both(lambda x: reduce_scatter(x, LOGSUMEXP, comm), {"out": draw(comm.rank, 5, 8), "lse": draw(comm.rank, 5)})
    assert part["out"].shape == (len(own_rows(comm, 5)), 8)


@case
def an_operator_of_its_own(comm):
    """One that does not commute: text in digits."""
    append = Operator(
        "append",
        (Field("value"), Field("power")),
        lambda a, b: {"value": a["value"] * b["power"] + b["value"], "power": a["power"] * b["power"]},
        {"value": 0, "power": 1},
    )
    digits = both(lambda x: allreduce(x, append, comm), {"value": np.int32([comm.rank + 1]), "power": np.int32([10])})
    assert int(digits["value"][0]) == int("".join(str(rank + 1) for rank in range(comm.size)))
    half = Operator("half", (Field("x", ("*rows", "k")),), lambda a, b: {"x": a["x"] + b["x"]}, {"x": 0})
    found = both(lambda x: allreduce(x, half, comm), [draw(comm.rank, 3, 2), draw(comm.rank, 3)])
    np.testing.assert_allclose(found[0], sum(values(comm, lambda rank: draw(rank, 3, 2))), rtol=1e-6)


def own_rows(comm, n):
    return range(comm.rank * n // comm.size, (comm.rank + 1) * n // comm.size)


@case
def others_move(comm):
    everyone = values(comm, lambda rank: draw(rank, 2, 3))
    np.testing.assert_array_equal(both(lambda x: allgather(x, comm), everyone[comm.rank]), np.concatenate(everyone))
    everyone = values(comm, lambda rank: draw(rank, 13, 3))
    rows = own_rows(comm, 13)
    found = both(lambda x: reduce_scatter(x, SUM, comm), everyone[comm.rank])
    np.testing.assert_allclose(found, sum(everyone)[rows.start : rows.stop], rtol=1e-6)
    found = both(lambda x: alltoall(x, comm), everyone[comm.rank])
    np.testing.assert_array_equal(found, np.concatenate([x[rows.start : rows.stop] for x in everyone]))


@case
def loops_and_branches(comm):
    def scanned(x):
        return jax.lax.scan(
            lambda carry, y: (allreduce(carry, MAX, comm) + y, allreduce(y, SUM, comm)),
            x,
            jnp.arange(6, dtype=jnp.float32),
        )

    carry, ys = jax.jit(scanned)(jnp.float32(comm.rank))
    assert float(carry) == comm.size - 1 + 15
    np.testing.assert_array_equal(ys, comm.size * np.arange(6.0))
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda i, v: allreduce(v, SUM, comm) / comm.size, x))
    np.testing.assert_allclose(looped(jnp.ones(4)), np.ones(4), rtol=1e-5)

    def branch(flag, x):
        return jax.lax.cond(flag, lambda y: allreduce(y, SUM, comm), lambda y: y, x)

    assert float(jax.jit(branch)(True, jnp.float32(1))) == comm.size
    assert float(jax.jit(branch)(False, jnp.float32(1))) == 1
    total = jax.jit(lambda x: jax.lax.while_loop(lambda v: v < 100, lambda v: allreduce(v + 1, SUM, comm), x))(
        jnp.float32(0)
    )
    assert float(total) >= 100


@case
def several_communicators_in_one_program(comm):
    """Calls that do not depend on each other, one with a result that nobody uses: made in the order of the program."""
    other, half = comm.split(0, -comm.rank), comm.split(comm.rank % 2)

    def step(x):
        parts = []
        for turn in range(20):
            use = (comm, half, other)[turn % 3]
            allreduce(x + turn, MAX, comm)
            parts.append(allreduce(x * (turn + 1.0), SUM, use) / use.size)
        return jnp.stack(parts)

    for _ in range(5):
        found = jax.jit(step)(jnp.full(100, 2.0))
    np.testing.assert_allclose(found, 2 * np.arange(1.0, 21)[:, None] * np.ones(100), rtol=1e-6)
    assert int(both(lambda x: broadcast(x, other), np.int32(comm.rank))) == comm.size - 1
    other.close(), half.close()


@case
def gradients_of_sums(comm):
    """The loss is the same on all ranks, so each has the gradient of its own x; a sum of ones' tangents forward."""
    x = jnp.asarray(draw(comm.rank, 4) + 1)
    total = sum(values(comm, lambda rank: draw(rank, 4) + 1.0))

    def loss(x):
        return (allreduce({"a": x, "b": jnp.int32(3)}, SUM, comm)["a"] ** 3).sum()

    for run in (lambda f: f, jax.jit):
        np.testing.assert_allclose(run(jax.grad(loss))(x), 3 * total**2, rtol=1e-5)
        np.testing.assert_allclose(run(jax.value_and_grad(loss))(x)[0], (total**3).sum(), rtol=1e-5)
        tangent = run(lambda x: jax.jvp(loss, (x,), (jnp.ones_like(x),))[1])(x)
        np.testing.assert_allclose(tangent, (3 * total**2 * comm.size).sum(), rtol=1e-4)
        # the second derivative along a direction of all ranks, backward over forward and forward over backward
        back = run(jax.grad(lambda x: jax.jvp(loss, (x,), (jnp.ones_like(x),))[1]))(x)
        forth = run(lambda x: jax.jvp(jax.grad(loss), (x,), (jnp.ones_like(x),))[1])(x)
        np.testing.assert_allclose(back, 6 * total * comm.size, rtol=1e-4)
        np.testing.assert_allclose(forth, 6 * total * comm.size, rtol=1e-4)
        # backward over backward: what each rank did with its gradient counts on all
        twice = run(jax.grad(lambda x: jax.grad(loss)(x).sum()))(x)
        np.testing.assert_allclose(twice, 6 * total * comm.size, rtol=1e-4)

    def scanned(x):
        return jax.lax.scan(lambda c, _: (allreduce(c, SUM, comm) / comm.size * 0.5, None), x, None, length=3)[0].sum()

    np.testing.assert_allclose(jax.jit(jax.grad(scanned))(x), np.full(4, (0.5 / comm.size) ** 3), rtol=1e-5)


@case
def mapped(comm):
    everyone = values(comm, lambda rank: draw(rank, 4, 3, 2))
    x = everyone[comm.rank]
    for axis in range(3):
        found = both(jax.vmap(lambda y: allreduce(y, SUM, comm), in_axes=axis, out_axes=axis), x)
        np.testing.assert_allclose(found, sum(everyone), rtol=1e-6)
        found = both(jax.vmap(lambda y: allgather(y, comm), in_axes=axis), x)
        single = np.stack([np.concatenate([np.take(e, i, axis) for e in everyone]) for i in range(x.shape[axis])])
        np.testing.assert_array_equal(found, single)
    whole = {"out": x, "lse": x[..., 0]}
    found = both(jax.vmap(lambda y: allreduce(y, LOGSUMEXP, comm)), whole)
    jax.tree.map(np.testing.assert_array_equal, found, allreduce(whole, LOGSUMEXP, comm))
    same = both(
        jax.vmap(lambda y, lse: allreduce({"out": y, "lse": lse}, LOGSUMEXP, comm), (0, None)), x[:, 0], x[0, 0, 0]
    )
    assert same["out"].shape == (4, 2) and same["lse"].shape == (4,)
    slopes = jax.jit(jax.vmap(jax.grad(lambda y: allreduce(y, SUM, comm).sum())))(x[:, 0])
    np.testing.assert_array_equal(slopes, np.ones((4, 2)))


@case
def refusals(comm):
    """Found where the call is traced, on each rank, before anything moves."""
    ones = jnp.ones(3, jnp.float32)
    for call, words in [
        (lambda: jax.grad(lambda x: allreduce(x, MAX, comm).sum())(jnp.ones(2)), "allreduce with max: gradients"),
        (lambda: jax.grad(lambda x: allgather(x, comm).sum())(jnp.ones(2)), "jax.allgather: gradients"),
        (lambda: allreduce(jnp.ones(2), LOGSUMEXP, comm), "takes the fields .*one bare array"),
        (lambda: allreduce({"out": ones}, LOGSUMEXP, comm), r"takes the fields \['out', 'lse'\]"),
        (lambda: allreduce({"out": ones[None], "lse": ones}, LOGSUMEXP, comm), "leading shape"),
        (lambda: jax.jit(lambda x: allreduce(x, LOGADDEXP, comm))(jnp.int32(1)), "int32"),
        (lambda: allgather(jnp.float32(1), comm), "got a scalar"),
        (lambda: allreduce(jnp.ones(2), SUM, None), "expected a topocomm.Communicator, got NoneType"),
        (lambda: allreduce(jnp.ones(2), "sum", comm), "expected an Operator"),
    ]:
        with pytest.raises(TopocommError, match=words):
            call()


def main():
    jax.config.update("jax_enable_x64", "--x64" in sys.argv)
    names = [name for name in sys.argv[1:] if not name.startswith("-")]
    with topocomm.init() as comm:
        if "--mpi" in sys.argv:
            assert "torch" not in sys.modules
        for name in names or CASES:
            CASES[name](comm)
        jax.effects_barrier()
        print(f"[{comm.rank}] ok\n", end="", flush=True)


if __name__ == "__main__":
    main()
