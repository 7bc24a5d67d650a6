"""The user's arrays: NumPy or torch, bare or in a dict, NamedTuple or dataclass, and back in the same form."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import OperatorError
from topocomm.operators.operator import Operator
from topocomm.operators.tensors import as_array, as_tensor

Fields = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Structure:
    """How the user gave the fields: `rebuild` makes the same container from new arrays."""

    names: tuple[str, ...]
    is_torch: bool
    rebuild: Callable[[Mapping[str, Any]], Any] | None
    """None where the container is a dict of the fields in the operator's order."""
    bare: bool = False
    """Whether there is no container, but one array."""

    def give(self, fields: Fields) -> Any:
        """The fields in the user's container, as the user's kind of array; no copy is made."""
        made: dict[str, Any] = fields
        if self.is_torch:
            made = {name: as_tensor(array) for name, array in fields.items()}
        return made if self.rebuild is None else self.rebuild(made)

    def parts(self, x: Any) -> tuple[Any, ...]:
        """What the user gave for every field, as it is.

        Raises:
            OperatorError: A field is missing.
        """
        if type(x) is dict and len(x) == len(self.names) and all(map(x.__contains__, self.names)):
            return tuple(map(x.__getitem__, self.names))
        if _is_array(x):
            return (x,)
        found = _parts(x)
        if sorted(found) != sorted(self.names):
            raise OperatorError(f"expected the fields {list(self.names)}, got {list(found)}")
        return tuple([found[name] for name in self.names])


def signature(x: Any) -> Hashable:
    """A key that is equal for values of the same container, fields, shapes and dtypes; fast."""
    try:
        if type(x) is dict:
            return tuple([(name, a.shape, a.dtype) for name, a in x.items()])
        return (type(x), x.shape, x.dtype)
    except AttributeError:
        parts = _parts(x)
        return (type(x), tuple((n, type(a), np.shape(a), getattr(a, "dtype", None)) for n, a in parts.items()))


def parts_of(x: Any) -> dict[str, Any]:
    """What the user gave, by field; a bare array is the field "value".

    Raises:
        OperatorError: x is no array and no container of them.
    """
    return {"value": x} if _is_array(x) else _parts(x)


def describe(operator: Operator, x: Any) -> Structure:
    """The structure of a user's value.

    Raises:
        OperatorError: It has other fields than the operator, or mixes NumPy and torch.
    """
    wanted = tuple(f.name for f in operator.fields)
    if _is_array(x):
        if len(wanted) != 1:
            raise OperatorError(f"operator {operator.name!r} takes the fields {list(wanted)}, got one bare array")
        return Structure(wanted, _is_torch(x), lambda fields: fields[wanted[0]], bare=True)
    parts = _parts(x)
    if sorted(parts) != sorted(wanted):
        raise OperatorError(f"operator {operator.name!r} takes the fields {list(wanted)}, got {list(parts)}")
    kinds = {_is_torch(part) for part in parts.values()}
    if len(kinds) > 1:
        raise OperatorError("the fields mix torch tensors and NumPy arrays; give all as one kind")
    plain = type(x) is dict and tuple(x) == wanted
    return Structure(wanted, kinds.pop(), None if plain else _rebuilder(x))


def take(x: Any, names: tuple[str, ...]) -> Fields:
    """The user's arrays by field as NumPy arrays; tensors share their memory.

    Raises:
        OperatorError: A tensor requires gradients or is not on the CPU, or something is no array.
    """
    if type(x) is np.ndarray:
        return {names[0]: x}
    parts = {names[0]: x} if _is_array(x) else _parts(x)
    return {name: part if type(part) is np.ndarray else _as_numpy(name, part) for name, part in parts.items()}


def _as_numpy(name: str, part: Any) -> NDArray[Any]:
    if _is_torch(part):
        if part.requires_grad:
            raise OperatorError(f"field {name!r} requires gradients; pass x.detach()")
        if part.device.type != "cpu":
            raise OperatorError(f"field {name!r} is on {part.device}; this transport takes CPU tensors: pass x.cpu()")
        if str(part.layout) != "torch.strided":
            raise OperatorError(f"field {name!r} is sparse ({part.layout}); pass x.to_dense()")
        if part.is_conj() or part.is_neg():
            raise OperatorError(
                f"field {name!r} is conjugated or negated when it is read; pass x.resolve_conj().resolve_neg()"
            )
        try:
            return as_array(part)
        except TypeError as error:
            raise OperatorError(f"field {name!r}: NumPy has no {part.dtype} ({error}); convert it first") from None
        except RuntimeError as error:
            raise OperatorError(f"field {name!r}: {str(error).splitlines()[0]}") from None
    if isinstance(part, (np.ndarray, np.generic)):
        return np.asarray(part)
    raise OperatorError(f"field {name!r}: expected a NumPy array or torch tensor, got {type(part).__name__}")


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor exists only where torch was imported
    return torch is not None and isinstance(x, torch.Tensor)


def _is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) or _is_torch(x)


def _parts(x: Any) -> dict[str, Any]:
    if isinstance(x, Mapping):
        return dict(x)
    if isinstance(x, tuple) and hasattr(x, "_asdict"):
        return dict(x._asdict())
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    raise OperatorError(f"expected an array, or a dict, NamedTuple or dataclass of arrays, got {type(x).__name__}")


def _rebuilder(x: Any) -> Callable[[Mapping[str, Any]], Any]:
    if isinstance(x, Mapping):
        order = tuple(x)
        return lambda fields: {name: fields[name] for name in order}
    kind = type(x)
    return lambda fields: kind(**fields)
