"""Structure of the user's arrays: NumPy, torch or CuPy, bare or in a dict, NamedTuple or dataclass."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import OperatorError
from topocomm.execute.device import device_library as devices
from topocomm.execute.device.device_values import field_in_words, is_cupy, to_cupy, to_tensor
from topocomm.operators.operator import Operator
from topocomm.operators.operator_arguments import fields_apart
from topocomm.operators.tensors import as_array, as_tensor, numpy_dtype

Fields = dict[str, NDArray[Any]]

if TYPE_CHECKING:  # type checkers bring this module, and `PreparedCall` without its types is then one of any value
    from typing_extensions import TypeVar
else:
    from typing import TypeVar as _TypeVar

    def TypeVar(name: str, **_: Any) -> Any:
        """A type variable without the default that Python before 3.13 does not know."""
        return _TypeVar(name)


class Array(Protocol):
    """An array of NumPy, torch or CuPy."""

    @property
    def shape(self) -> Any:
        """Sizes of its axes."""

    @property
    def dtype(self) -> Any:
        """Type of its items."""

    def __setitem__(self, key: Any, value: Any, /) -> Any: ...


class Record(Protocol):
    """A NamedTuple of arrays."""

    def _asdict(self) -> dict[str, Any]: ...


class DataclassRecord(Protocol):
    """A dataclass of arrays."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


AnyValue = Array | Mapping[str, Any] | Record | DataclassRecord
"""What collectives take: an array, or a dict, NamedTuple or dataclass of arrays."""
Value = TypeVar("Value", bound=AnyValue, default=Any)
"""Type of a value, which is also that of the result."""
Result = TypeVar("Result", default=Any, covariant=True)
"""Type of what a call returns: that of the value, or also None where ranks have no result."""
Scalar = TypeVar("Scalar", bound=np.generic)
"""Type of a NumPy scalar; its result is an array without axes."""

KINDS = {(True, False): "torch tensors", (False, False): "NumPy arrays", (False, True): "CuPy arrays"}
"""By whether they are torch's and whether they are CuPy's."""


@dataclass(frozen=True)
class Structure:
    """Container of the user's fields; `rebuild` makes the same one from new arrays."""

    names: tuple[str, ...]
    is_torch: bool
    rebuild: Callable[[Mapping[str, Any]], Any] | None
    """None if the container is a dict of the fields in the operator's order."""
    bare: bool = False
    """Whether the value is one array without a container."""
    device: devices.Device | None = None
    """Device of the arrays; None: host memory."""
    is_cupy: bool = False

    @property
    def gives_tensors(self) -> bool:
        """Whether the operator's combine is given tensors."""
        return self.is_torch or self.device is not None

    def give(self, fields: Mapping[str, Any]) -> Any:
        """Return the fields, tensors for a device, else NumPy arrays, in the user's container and kind; no copies."""
        if self.is_cupy:
            fields = {name: to_cupy(tensor) for name, tensor in fields.items()}
        elif self.is_torch and self.device is None:
            fields = {name: as_tensor(array) for name, array in fields.items()}
        return fields if self.rebuild is None else self.rebuild(fields)

    def parts(self, x: Any) -> tuple[Any, ...]:
        """Return the user's array of every field.

        Raises:
            OperatorError: A field is missing.
        """
        if type(x) is dict and len(x) == len(self.names) and all(map(x.__contains__, self.names)):
            return tuple(map(x.__getitem__, self.names))
        if _is_array(x):
            return (x,)
        parts = _parts(x)
        if sorted(parts) != sorted(self.names):
            raise OperatorError(f"expected the fields {list(self.names)}; {fields_apart(self.names, parts)}")
        return tuple([parts[name] for name in self.names])


def signature(x: Any) -> Hashable:
    """Return a key, quickly, that is equal for values of the same container, fields, shapes and dtypes."""
    try:
        if type(x) is dict:
            return tuple([(name, type(a), a.shape, a.dtype, getattr(a, "is_cuda", None)) for name, a in x.items()])
        return (type(x), x.shape, x.dtype, getattr(x, "is_cuda", None))
    except AttributeError:
        parts = _parts(x)
        kinds = (
            (name, type(a), np.shape(a), getattr(a, "dtype", None), getattr(a, "is_cuda", None))
            for name, a in parts.items()
        )
        return (type(x), tuple(kinds))


def parts_of(x: Any) -> dict[str, Any]:
    """Return the user's arrays by field; a bare array is the field "value".

    Raises:
        OperatorError: x is no array and no container of them.
    """
    return {"value": x} if _is_array(x) else _parts(x)


def describe(operator: Operator, x: Any) -> Structure:
    """Return the structure of a user's value.

    Raises:
        OperatorError: It has other fields than the operator, mixes NumPy and torch, or lies in several memories.
    """
    wanted = tuple(f.name for f in operator.fields)
    bare = _is_array(x)
    if bare and len(wanted) != 1:
        raise OperatorError(f"operator {operator.name!r} takes the fields {list(wanted)}, got one bare array")
    parts = {wanted[0]: x} if bare else _parts(x)
    if sorted(parts) != sorted(wanted):
        raise OperatorError(
            f"operator {operator.name!r} takes the fields {list(wanted)}; {fields_apart(wanted, parts)}"
        )
    kinds = {(_is_torch(part), is_cupy(part)) for part in parts.values()}
    if len(kinds) > 1:
        names = [name for kind, name in KINDS.items() if kind in kinds]
        raise OperatorError(f"the fields mix {' and '.join(names)}; give all as one kind")
    ((torch, cupy),) = kinds
    held = {devices.device_of(part) for part in parts.values()}
    if len(held) > 1:
        where = ", ".join(f"{name!r} on {getattr(part, 'device', 'host')}" for name, part in parts.items())
        raise OperatorError(f"the fields lie in several memories ({where}); put all of them on one device")
    plain = type(x) is dict and tuple(x) == wanted
    return Structure(wanted, torch, None if plain else rebuilder(x), bare, held.pop(), cupy)


def shapes_of(x: Any, names: tuple[str, ...]) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and NumPy dtype of the user's arrays by field; raises like `take`."""
    parts = {names[0]: x} if _is_array(x) else _parts(x)
    if not any(devices.device_of(part) for part in parts.values()):
        return {name: (array.shape, array.dtype) for name, array in take(x, names).items()}
    shapes = {}
    for name, part in parts.items():
        if devices.device_of(part) is None:
            raise OperatorError(f"field {name!r} is in host memory and others are on a device; put all on one device")
        known = None if part is x else name
        tensor = to_tensor(known, part)
        try:
            shapes[name] = (tuple(tensor.shape), numpy_dtype(tensor.dtype))
        except OperatorError as error:
            raise OperatorError(f"{field_in_words(known)}: {error}") from None
    return shapes


def take(x: Any, names: tuple[str, ...]) -> Fields:
    """Return the user's arrays by field as NumPy arrays; tensors share their memory.

    Raises:
        OperatorError: A tensor requires gradients or is not on the CPU, or something is no array.
    """
    if type(x) is np.ndarray:
        return {names[0]: x}
    if _is_array(x):
        return {names[0]: _as_numpy(None, x)}
    return {name: part if type(part) is np.ndarray else _as_numpy(name, part) for name, part in _parts(x).items()}


def in_words(what: str, name: str, fields: Sized) -> str:
    """Return one of the fields of an argument in words; of an argument that is one array, the argument."""
    return what if len(fields) == 1 else f"{what}: field {name!r}"


def _as_numpy(name: str | None, part: Any) -> NDArray[Any]:
    if _is_torch(part):
        if part.device.type != "cpu" and not part.requires_grad:
            raise OperatorError(
                f"{field_in_words(name)} is on {part.device}; this transport takes CPU tensors: pass x.cpu()"
            )
        part = to_tensor(name, part)
        try:
            return as_array(part)
        except TypeError as error:
            raise OperatorError(
                f"{field_in_words(name)}: NumPy has no {part.dtype} ({error}); convert it first"
            ) from None
        except RuntimeError as error:
            raise OperatorError(f"{field_in_words(name)}: {str(error).splitlines()[0]}") from None
    if isinstance(part, (np.ndarray, np.generic)):
        return np.asarray(part)
    if is_cupy(part):
        raise OperatorError(f"{field_in_words(name)} is a CuPy array; expected host memory here: pass x.get()")
    raise OperatorError(f"{field_in_words(name)}: expected a NumPy array or torch tensor, got {_unwrapped(part)}")


def _unwrapped(part: Any) -> str:
    """What is no array in words; of Python's numbers and lists with what makes one of it."""
    numbers = isinstance(part, (bool, int, float, complex, list, tuple))
    return type(part).__name__ + "; wrap it with np.asarray(...)" * numbers


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")  # a tensor exists only where torch was imported
    return torch is not None and isinstance(x, torch.Tensor)


def _is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, np.generic)) or _is_torch(x) or is_cupy(x)


def _parts(x: Any) -> dict[str, Any]:
    if isinstance(x, Mapping):
        return dict(x)
    if isinstance(x, tuple) and hasattr(x, "_asdict"):
        return dict(x._asdict())
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    if x is None:
        got, rest = "None", "; every rank gives the same shapes and dtypes"
    else:
        got, rest = _unwrapped(x), ""
    raise OperatorError(f"expected an array, or a dict, NamedTuple or dataclass of arrays, got {got}{rest}")


def rebuilder(x: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Return what makes a value like x from arrays by field."""
    if _is_array(x):
        return lambda fields: next(iter(fields.values()))
    if isinstance(x, Mapping):
        order = tuple(x)
        return lambda fields: {name: fields[name] for name in order}
    kind, names = type(x), tuple(_parts(x))
    return lambda fields: kind(**{name: fields[name] for name in names})
