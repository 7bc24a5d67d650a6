"""What each rank's JAX program raises where something goes wrong: `python errors.py CASE...`, once per rank.

Prints `[rank] case: kind: text`. Cases have a communicator each; those in which a rank ends come last.
"""

import os
import re
import sys
import time
from contextlib import suppress

import jax
import jax.numpy as jnp

import topocomm
from topocomm import MAX, SUM, Field, Operator, TopocommError
from topocomm.jax import allgather, allreduce


def compiled(operator, comm):
    return jax.jit(lambda x: allreduce(x, operator, comm) + 1)


def shapes_differ(comm):
    compiled(SUM, comm)(jnp.ones(3 + comm.rank % 2)).block_until_ready()


def operators_differ(comm):
    compiled(MAX if comm.rank == 1 else SUM, comm)(jnp.ones(3)).block_until_ready()


def shapes_differ_outside(comm):
    allreduce(jnp.ones(3 + comm.rank % 2), SUM, comm)


def rows_differ(comm):
    jax.jit(lambda x: allgather(x, comm))(jnp.ones(1 + comm.rank)).block_until_ready()


def one_is_late(comm):
    step = compiled(SUM, comm)
    step(jnp.ones(4)).block_until_ready()  # now the call is known: the next wait is for its data
    time.sleep(4 * (comm.rank == 1))
    step(jnp.ones(4)).block_until_ready()


def combine_fails(comm):
    def combine(a, b):
        if comm.rank == 1:
            raise SystemError("out of paper")
        return {"x": a["x"] + b["x"]}

    compiled(Operator("frail", (Field("x"),), combine, {"x": 0}, commutative=True), comm)(
        jnp.ones(4)
    ).block_until_ready()


def nobody_looks(comm):
    """The result is not used: the error is found where effects are awaited."""
    jax.jit(lambda x: (allreduce(x, SUM, comm), x)[1])(jnp.ones(3 + comm.rank % 2)).block_until_ready()
    jax.effects_barrier()


def closed(comm):
    comm.close()
    compiled(SUM, comm)(jnp.ones(3)).block_until_ready()


def one_dies(comm):
    if comm.rank == 1:
        os._exit(7)
    compiled(SUM, comm)(jnp.ones(4)).block_until_ready()


def main():
    with topocomm.init() as world:
        for name in sys.argv[1:]:
            comm = world.split(0)
            try:
                globals()[name](comm)
            except (TopocommError, jax.errors.JaxRuntimeError) as error:
                text = " ".join(re.split(r"\n(?=\w+(?:\.\w+)*Error: )", str(error).strip())[-1].split())
                print(f"[{world.rank}] {name}: {type(error).__name__}: {text}\n", end="", flush=True)
            with suppress(jax.errors.JaxRuntimeError):  # a program that goes on without that communicator
                jax.effects_barrier()
            if name == "one_dies":
                time.sleep(1)
                os._exit(0)
            world.barrier()
            total = jax.jit(lambda x: allreduce(x, SUM, world))(jnp.ones(1))
            assert int(total[0]) == world.size, "the other communicators go on"


if __name__ == "__main__":
    main()
