"""Collectives on JAX arrays and pytrees of them. All ranks trace the same calls in the same order.

Inside `jax.jit` they are part of the compiled program; outside they return when the call is done. Errors raised outside
are those of topocomm; those of a compiled program come as a JaxRuntimeError with the same words, where its results or
effects are awaited.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from topocomm.errors import OperatorError, TopocommError
from topocomm.execute.calls.structure import parts_of, rebuilder
from topocomm.execute.communicator import Communicator
from topocomm.jax.host_side import Collective
from topocomm.jax.primitive import bind
from topocomm.operators.operator import Operator, as_operator
from topocomm.operators.operator_arguments import fields_apart


def allreduce(x: Any, operator: Operator, comm: Communicator) -> Any:
    """Return the fold of all ranks' values, in rank order unless `operator` commutes; the same bits on every rank.

    Short arrays of a pytree are reduced together. With SUM it can be differentiated: reverse mode takes the result,
    and so the gradient that comes to it, as the same on all ranks, and hands it to each; forward mode sums tangents.

    Args:
        x: An array, or a pytree of arrays, each reduced by itself; for an operator of several fields a dict, NamedTuple
            or dataclass with an array for each of them, such as {"out": out, "lse": lse}.
        operator: The operator.
        comm: The communicator, of ranks that are processes.

    Raises:
        OperatorError: The operator does not take such arrays.
        TopocommError: `comm` is no communicator, or one of threads.
        DeadlineError, MismatchError, RankFailedError: As for any call.
    """
    return _reduce("allreduce", x, as_operator(operator), comm)


def reduce_scatter(x: Any, operator: Operator, comm: Communicator) -> Any:
    """Return this rank's rows of the fold of all ranks' values: of n rows those from r*n//P to (r+1)*n//P on rank r.

    Operands and errors as in `allreduce`; what is scattered is the first axis.
    """
    return _reduce("reduce_scatter", x, as_operator(operator), comm)


def broadcast(x: Any, comm: Communicator, *, root: int = 0) -> Any:
    """Return the root's pytree of arrays on every rank; elsewhere x gives structure, shapes and dtypes."""
    return _each(x, Collective("broadcast", _checked(comm), root=root))


def allgather(x: Any, comm: Communicator) -> Any:
    """Return all ranks' arrays joined along their first axis, in rank order; they have the same shape on all ranks."""
    return _each(x, Collective("allgather", _checked(comm)))


def alltoall(x: Any, comm: Communicator) -> Any:
    """Return the rows that all ranks have for this one, of n rows those from r*n//P to (r+1)*n//P for rank r."""
    return _each(x, Collective("alltoall", _checked(comm)))


def _reduce(name: str, x: Any, operator: Operator, comm: Communicator) -> Any:
    names = tuple(f.name for f in operator.fields)
    if len(names) == 1:
        return _each(x, Collective(name, _checked(comm), operator))
    if hasattr(x, "shape"):
        raise OperatorError(f"operator {operator.name!r} takes the fields {list(names)}, got one bare array")
    parts = parts_of(x)
    if sorted(parts) != sorted(names):
        raise OperatorError(f"operator {operator.name!r} takes the fields {list(names)}; {fields_apart(names, parts)}")
    results = bind(Collective(name, _checked(comm), operator, fields=names), [jnp.asarray(parts[n]) for n in names])
    return rebuilder(x)(dict(zip(names, results, strict=True)))


def _each(x: Any, what: Collective) -> Any:
    leaves, tree = jax.tree.flatten(x)
    return jax.tree.unflatten(tree, bind(what, [jnp.asarray(leaf) for leaf in leaves]))


def _checked(comm: Any) -> Communicator:
    if not isinstance(comm, Communicator):
        raise TopocommError(f"topocomm.jax: expected a topocomm.Communicator, got {type(comm).__name__}")
    if comm.in_process and comm.size > 1:
        raise TopocommError(
            "topocomm.jax: ranks are processes here, since a process's JAX makes one ordered call at a time and "
            "threads would wait for each other: start with mpirun, srun or torchrun instead of run_local"
        )
    return comm
