"""One Plan on one Transport with one Operator: a prepared call that allocates nothing but its result.

All buffers, requests and merges are set up once. A call packs the value into the send buffer (or finds it there),
runs the stages of this rank's program, and copies the result out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from operator import is_
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import OperatorError, TopocommError
from topocomm.execute.calls.handle import Handle
from topocomm.execute.calls.structure import Fields, Result, Structure, Value, in_words, take
from topocomm.execute.dynamo import skipped_by_dynamo
from topocomm.execute.host.call_engine import CallEngine, Span, Work
from topocomm.execute.host.canonical_nodes import LocalNodes
from topocomm.execute.host.engine_choice import make_engines, shared_by
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.session import BUSY, Session
from topocomm.execute.transports.transport import Transport
from topocomm.operators.layout import Layout
from topocomm.operators.operator_arguments import fields_apart

PUBLIC = ("free", "input", "plan", "start")
"""Names that programs use; the others are for the library."""
Shapes = list[tuple[str, tuple[int, ...], np.dtype[Any]]]


@skipped_by_dynamo
class PreparedCall(Generic[Value, Result]):
    """A collective made ready for values of one structure; made by `Communicator.prepare`.

    Attributes:
        plan: What is executed.
        engines: The memory that it runs in, one engine or two in turn: they tell how its data moves.
    """

    engines: Sequence[CallEngine]

    def __init__(self, session: Session, work: Work, structure: Structure, local: LocalNodes | None = None) -> None:
        self.plan = work.plan
        self.tag = work.tag
        self._session = session
        self._layout = work.layout
        self.structure = structure
        self.engines = make_engines(work, session.waiting)
        views = [engine.views if local is None else None for engine in dict.fromkeys(self.engines)]
        inputs = [None if held is None else structure.give(dict(held)) for held in views]
        self._inputs = inputs * (len(self.engines) // len(inputs))  # one engine may serve both turns
        self._input_parts = [() if held is None else structure.parts(held) for held in self._inputs]
        self._shared = self.engines[0].shared
        self._local = local
        value = work.value if local is None else Span(0, (local.shards, *work.layout.leading))
        self._values, self._results = _shapes(work.layout, value), _shapes(work.layout, work.result)
        self._identity = work.operator.identities(work.layout) if work.first_of_exscan else None
        self._gives, self._same = work.gives_result, work.value == work.result
        self._handle: Handle | None = None
        self._freed = False
        self.fast_path = self._bind_fast_path()
        """As `fast_path.py`; None where there is no shorter way."""

    def __repr__(self) -> str:
        return f"<PreparedCall {repr(self.plan)[6:-1]}{', freed' if self._freed else ''}>"

    def _repr_html_(self) -> str:
        """The call in a notebook: its plan."""
        return self.plan._repr_html_()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name.startswith("__") or name in PUBLIC]

    @property
    def _turn(self) -> int:
        return 0 if self._shared is None else (self._shared.epoch + 1) & 1

    @property
    def memory(self) -> tuple[int, int]:
        """(number, bytes) of the memory that it lies in, the same on all ranks: a shared segment, or its own."""
        shared = shared_by(self.engines[0])
        figures = self.plan.figures
        return (-self.tag, self.plan.payload_bytes + figures.scratch_bytes) if shared is None else shared.segment

    @property
    def transport(self) -> Transport:
        """The wire between its ranks."""
        return self._session.transport

    @property
    def input(self) -> Value | None:
        """The user's structure with arrays that are the send buffer of the next call.

        Fill them and pass `call.input` to skip the packing copy. Ask for it anew before each call: buffers take
        turns, and one of an earlier call is refused. None where the plan splits the payload in several chunks.
        """
        return self._inputs[self._turn]

    @property
    def turns(self) -> tuple[tuple[Value | None, ...], NDArray[np.int64] | None]:
        """What `input` is in turn, for those who fill it in compiled code: all of them, and the count [1] of calls.

        With a count n the next call's is number (n + 1) % 2. None: there is one only, which does not change.
        """
        if self._shared is None:
            return (self._inputs[0],), None
        return (*self._inputs,), np.frombuffer(self._shared.calls, np.int64)

    def __call__(self, x: Value | None = None, *, out: Value | None = None) -> Result:
        """Run the collective.

        Args:
            x: This rank's value: the structure, shapes and dtypes that the call was prepared for. None where this
                rank puts none in (broadcast, not the root).
            out: Where to write the result, the same structure; may be x, but not `input`. Nothing is allocated then.

        Returns:
            The result in x's structure, the caller's own; `out` where it is given; None on ranks without one.

        Raises:
            OperatorError: x or out does not fit.
            MismatchError: Another rank makes another call.
            DeadlineError: A rank did not come in time.
            RankFailedError: A rank failed.
        """
        if self.fast_path is not None and self._handle is None and not self._freed:
            first, second = self._inputs
            is_earlier = (x is first or x is second) and x is not self._inputs[self._turn]
            result: Any = None if is_earlier else self.fast_path(x, out)
            if result is not None:
                if not self._gives:
                    result = None
                return result
        return self._run(*self.fit(x, out), out)

    def repeat(self, x: Any, out: Any) -> Any:
        """Make the call with a value of the signature that it is kept under, which is not inspected again."""
        if self.fast_path is not None or self._local is not None:
            return self(x, out=out)
        return self._run(*self.fit(x, out, known=True), out)

    def start(self, x: Value | None = None, *, out: Value | None = None) -> Handle[Result]:
        """Begin the collective and return at once; x and out must be left alone until the handle is through.

        Several prepared calls may be under way at the same time, begun in the same order on all ranks; one of them
        may be begun again when it is through. Arguments and errors are those of a call.
        """
        fields, given = self.fit(x, out)
        session = self._session
        engine, number = self._enter()
        try:
            target = self.target(fields, given) if self._gives else None
            through = engine.begin(fields, target, target is not given or _apart(fields, given))
        except BaseException as error:
            engine.withdraw()
            session.fail_with(error)
            raise
        session.refusal = None
        call = UnderWay(engine, self.tag, number, withdraw=engine.withdraw)
        handle = Handle(session, call, lambda: self.finish(target, given, out))
        if through:
            handle.through()
        else:
            self._handle = handle
            session.waiting.under_way.append(call)
        return handle

    def _bind_fast_path(self) -> Callable[[Any, Any], Any] | None:
        """The shortest way through this call, if it is in shared memory and its values have one."""
        structure = self.structure
        if self._shared is None or self._local is not None or self._identity is not None:
            return None
        from topocomm.execute.calls.fast_path import bind_arrays, bind_tensors
        from topocomm.execute.host.compiled_engine import CompiledEngine

        engines = [engine for engine in self.engines if isinstance(engine, CompiledEngine)]
        if not engines or not (structure.bare or structure.rebuild is None):
            return None
        results = self._results if self._gives else None
        fast_path = bind_arrays(self._session, engines, self._values, results, self.tag, bare=structure.bare)
        dtypes = [dtype for _, _, dtype in self._values]
        return bind_tensors(fast_path, dtypes, bare=structure.bare) if structure.is_torch else fast_path

    def free(self) -> None:
        """Give back the requests; the call takes no more values."""
        self._freed = True
        for engine in dict.fromkeys(self.engines):
            engine.free()

    def let_go(self) -> None:
        """Give back what can be, when only the communicator knows the call."""
        self.free()

    def _enter(self) -> tuple[CallEngine, int]:
        session = self._session
        if session.refusal is not None:
            session.enter()  # raises, and says why
        if self._freed:
            raise TopocommError("this prepared call was freed; prepare another one")
        if self._handle is not None:
            if not self._handle.done:
                raise TopocommError("this prepared call is under way; wait for its handle before you begin it again")
            self._handle = None
        session.refusal = BUSY
        return self.engines[self._turn], session.recorder.begin(self.tag)

    def _run(self, fields: Fields | None, given: Fields | None, out: Any) -> Any:
        session = self._session
        engine, number = self._enter()
        try:
            target = self.target(fields, given) if self._gives else None
            if not engine.begin(fields, target, target is not given or _apart(fields, given)):
                session.waiting.for_call(UnderWay(engine, self.tag, number))
            result = self.finish(target, given, out)
        except BaseException as error:
            engine.withdraw()
            session.fail_with(error)
            raise
        session.refusal = None
        return result

    def finish(self, target: Fields | None, given: Fields | None, out: Any) -> Any:
        """Return what the caller gets of a result in `target`: in `out` where that has the arrays `given`."""
        if target is None:
            return None
        if self._identity is not None:
            for name, array in target.items():
                array[...] = self._identity[name]
        if given is None:
            return self.structure.give(target)
        if target is not given:
            for name, array in given.items():
                array[...] = target[name]
        return out

    def fit(self, x: Any, out: Any, *, known: bool = False) -> tuple[Fields | None, Fields | None]:
        """The arrays of x and out; where they do not fit, the other ranks are told, who may wait for them."""
        try:
            fields = take(x, self.structure.names) if known else self._value(x)
            return fields, None if out is None or not self._gives else self.fit_result(out)
        except OperatorError as error:
            self._session.refuse(self.tag, error)
            raise

    def _value(self, x: Any) -> Fields | None:
        """The arrays of x, which fit; None where it is the send buffer, or there is none."""
        if x is None:
            if self.engines[0].takes_value:
                raise OperatorError("x is missing: this rank puts a value in")
            return None
        turn = self._turn
        if x is self._inputs[turn]:
            if all(map(is_, self.structure.parts(x), self._input_parts[turn])):
                return None
        elif x is self._inputs[turn - 1]:
            raise OperatorError("x is the send buffer of an earlier call; take `call.input` anew before each call")
        fields = take(x, self.structure.names)
        check_shapes("x", fields, self._values)
        return fields if self._local is None else self._local.fold(fields)

    def fit_result(self, out: Any) -> Fields:
        """The arrays of `out`, which fit and can be written."""
        parts = self.structure.parts(out)
        given = dict(zip(self.structure.names, parts, strict=True))
        if not all(type(part) is np.ndarray for part in parts):
            for name, part in given.items():
                if isinstance(part, np.generic):
                    words = in_words("out", name, given)
                    raise OperatorError(f"{words} is a NumPy scalar, which cannot be written; give an array")
            given = take(out, self.structure.names)
        check_shapes("out", given, self._results)
        for name, array in given.items():
            if not array.flags.writeable:
                raise OperatorError(f"{in_words('out', name, given)} is read-only; give a writable array")
            repeated = any(stride == 0 and size > 1 for stride, size in zip(array.strides, array.shape, strict=True))
            if repeated and array.size:  # of an array without items all strides may be 0
                raise OperatorError(
                    f"{in_words('out', name, given)}: several items are one place in memory; give a plain array"
                )
            if array.base is not None and any(np.may_share_memory(array, engine.memory) for engine in self.engines):
                raise OperatorError(
                    f"{in_words('out', name, given)} lies in the call's send buffer, which other ranks may still "
                    "read; give another array"
                )
        for first, second in combinations(given, 2):
            if np.may_share_memory(given[first], given[second]) and np.shares_memory(given[first], given[second]):
                raise OperatorError(f"out: fields {first!r} and {second!r} share memory; give arrays of their own")
        return given

    def target(self, fields: Fields | None, given: Fields | None) -> Fields:
        """Where the result goes: to the caller's arrays if it can be made there, else to fresh ones.

        They must be aligned and C-contiguous, and overlap the value's only where they are the value's.
        """
        plain = given is not None and all(array.flags.carray for array in given.values())
        if given is not None and plain and (_apart(fields, given) or (self._same and _in_place(fields or {}, given))):
            return given
        return {name: self._session.results.empty(shape, dtype) for name, shape, dtype in self._results}


def _shapes(layout: Layout, span: Span) -> Shapes:
    return [(f.name, (*span.leading, *f.row_shape), f.dtype) for f in layout.fields]


def _apart(fields: Fields | None, given: Fields | None) -> bool:
    """Whether what is written is surely other memory than what is read."""
    if fields is None or given is None:
        return True
    return not any(np.may_share_memory(a, b) for a in fields.values() for b in given.values())


def _in_place(fields: Fields, given: Fields) -> bool:
    """Whether the result's arrays are the value's, field by field."""
    return all(
        array.ctypes.data == given[name].ctypes.data
        and array.shape == given[name].shape
        and array.flags.c_contiguous
        and not any(np.may_share_memory(array, other) for n, other in given.items() if n != name)
        for name, array in fields.items()
    )


def check_shapes(what: str, fields: Mapping[str, Any], shapes: Sequence[tuple[str, tuple[int, ...], Any]]) -> None:
    """Raise an OperatorError where fields, or the shape or dtype of one, are not those that a call was prepared for."""
    for name, shape, dtype in shapes:
        got = fields.get(name)
        if got is None or len(fields) != len(shapes):
            names = [name for name, _, _ in shapes]
            raise OperatorError(f"{what}: expected the fields {names} as prepared; {fields_apart(names, fields)}")
        if got.shape != shape or got.dtype != dtype:
            raise OperatorError(
                f"{in_words(what, name, shapes)} must be {dtype} {list(shape)} as prepared, "
                f"got {got.dtype} {list(got.shape)}"
            )
