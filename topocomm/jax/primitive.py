"""The JAX primitive of all collectives: how it is traced, compiled, differentiated and mapped.

It has JAX's effect of ordered callbacks. So XLA makes all calls of a program in the order in which they were traced, on
every rank the same, also those of several communicators, of scans and of functions whose result nobody uses. Compiled
programs call `perform` with arrays on XLA's own memory; `io_callback` would move them to another device first, which
takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from topocomm.errors import OperatorError
from topocomm.jax.host_side import Collective, perform
from topocomm.operators.builtin import SUM

(ORDERED,) = jax.make_jaxpr(lambda: io_callback(lambda: (), (), ordered=True))().effects
"""The effect of ordered callbacks; that of `jax.debug.callback(ordered=True)` is another one."""

collective_p = Primitive("topocomm_collective")
collective_p.multiple_results = True
share_p = Primitive("topocomm_share")
"""The transpose of a sum: the value that all ranks have becomes one of each rank. Moves nothing."""
share_p.multiple_results = True


def bind(what: Collective, operands: Sequence[Any]) -> list[Any]:
    """Return the results of a collective on arrays or on what JAX traces with."""
    return list(collective_p.bind(*operands, what=what))


def _run_now(*operands: Any, what: Collective) -> list[Any]:
    """Make the call here, outside of compiled programs, after all calls of those that still run."""
    jax.effects_barrier()
    results = perform(what, [np.asarray(operand) for operand in operands])
    devices = [next(iter(operand.devices())) if isinstance(operand, jax.Array) else None for operand in operands]
    return [jax.device_put(result, device) for result, device in zip(results, devices, strict=True)]


def _describe(*operands: Any, what: Collective) -> tuple[list[Any], set[Any]]:
    if what.operator is not None:
        names = what.fields or (what.operator.fields[0].name,)
        values = [operands] if what.fields is not None else [(operand,) for operand in operands]
        for value in values:
            what.operator.layout({name: (x.shape, x.dtype) for name, x in zip(names, value, strict=True)})
    return [x.update(shape=what.result_shape(x.shape), weak_type=False) for x in operands], {ORDERED}


def _compile(ctx: Any, *operands: Any, what: Collective) -> Any:
    results, token, _ = mlir.emit_python_callback(
        ctx,
        lambda *arrays: tuple(perform(what, arrays)),
        ctx.tokens_in.get(ORDERED),
        list(operands),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=True,
    )
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({ORDERED: token})))
    return results


def _differentiate(primals: Sequence[Any], tangents: Sequence[Any], *, what: Collective) -> tuple[list[Any], list[Any]]:
    if what.name != "allreduce" or what.operator is not SUM:
        operator = "" if what.operator is None else f" with {what.operator.name}"
        raise OperatorError(
            f"topocomm.jax.{what.name}{operator}: gradients are those of allreduce with SUM only; "
            "pass jax.lax.stop_gradient(x), or give a function of your own its rule by jax.custom_vjp"
        )
    return bind(what, primals), _of_those_that_move(partial(collective_p.bind, what=what), tangents)


def _transpose_sum(changes: Sequence[Any], *operands: Any, what: Collective) -> list[Any]:
    del operands
    return _of_those_that_move(partial(share_p.bind, what=what), changes)


def _transpose_share(changes: Sequence[Any], *operands: Any, what: Collective) -> list[Any]:
    del operands
    return _of_those_that_move(partial(collective_p.bind, what=what), changes)


def _of_those_that_move(function: Any, changes: Sequence[Any]) -> list[Any]:
    moving = [index for index, change in enumerate(changes) if type(change) is not ad.Zero]
    found = list(changes)
    for index, change in zip(moving, function(*[changes[index] for index in moving]), strict=True):
        found[index] = change
    return found


def _differentiate_share(primals: Any, tangents: Any, *, what: Collective) -> tuple[list[Any], list[Any]]:
    changes = _of_those_that_move(partial(share_p.bind, what=what), tangents)
    return share_p.bind(*primals, what=what), changes


def _map(operands: Sequence[Any], axes: Sequence[Any], *, what: Collective) -> tuple[list[Any], list[Any]]:
    """One call for all items of the mapped axis, which are rows as others are."""
    if what.operator is not None and not what.operator.splittable:
        raise OperatorError(
            f"topocomm.jax.{what.name} with {what.operator.name}: vmap needs an operator whose fields have rows; "
            "use jax.lax.map"
        )
    at = 0 if what.keeps_shapes else 1
    (size,) = {x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None}
    moved: list[Any] = []
    places: list[Any] = []
    for operand, axis in zip(operands, axes, strict=True):
        if axis is None and what.fields is None:
            moved.append(operand)
            places.append(None)
            continue
        if axis is None:
            there = jnp.expand_dims(operand, at)
            moved.append(jnp.broadcast_to(there, (*there.shape[:at], size, *there.shape[at + 1 :])))
        else:
            moved.append(jnp.moveaxis(operand, axis, at))
        places.append(at)
    return bind(what, moved), places


def _map_share(operands: Any, axes: Any, *, what: Collective) -> tuple[list[Any], Any]:
    return share_p.bind(*operands, what=what), axes


collective_p.def_impl(_run_now)
collective_p.def_effectful_abstract_eval(_describe)
mlir.register_lowering(collective_p, _compile)
ad.primitive_jvps[collective_p] = _differentiate
ad.primitive_transposes[collective_p] = _transpose_sum
batching.primitive_batchers[collective_p] = _map

share_p.def_impl(lambda *operands, what: list(operands))
share_p.def_abstract_eval(lambda *operands, what: list(operands))
mlir.register_lowering(share_p, lambda ctx, *operands, what: operands)
ad.primitive_jvps[share_p] = _differentiate_share
ad.primitive_transposes[share_p] = _transpose_share
batching.primitive_batchers[share_p] = _map_share
