"""A prepared call on values in device memory: asynchronous, as torch's operations are.

A call puts everything on the current stream and returns; what comes after it on that stream sees the result. While a
graph is captured it asks nothing of the device, so `torch.cuda.graph` can record it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any, TypeVar

from topocomm.errors import OperatorError, TopocommError
from topocomm.execute.calls.agreement import gather_notes
from topocomm.execute.calls.handle import Handle
from topocomm.execute.calls.prepared_call import PreparedCall, check_shapes
from topocomm.execute.calls.structure import Structure, in_words
from topocomm.execute.device import device_library as devices
from topocomm.execute.device.device_engine import DeviceEngine, NativeEngine, StreamEngine
from topocomm.execute.device.device_path import DevicePath
from topocomm.execute.device.device_values import Tensors, check_writable, to_tensor
from topocomm.execute.device.peer.peer_engine import PeerEngine, PeerPlan
from topocomm.execute.host.call_engine import Span, Work
from topocomm.execute.liveness.waiting import UnderWay
from topocomm.execute.session import Session
from topocomm.execute.transports.transport import GATHER_TAG
from topocomm.operators.layout import Layout
from topocomm.operators.tensors import torch_dtype

Loaded = TypeVar("Loaded")
TensorShapes = Mapping[str, tuple[tuple[int, ...], Any]]


class DeviceValues:
    """The values that a prepared call takes and gives, checked and as tensors."""

    def __init__(self, structure: Structure, layout: Layout, value: Span, result: Span) -> None:
        self.structure = structure
        self.value, self.result = (
            {f.name: ((*span.leading, *f.row_shape), torch_dtype(f.dtype)) for f in layout.fields}
            for span in (value, result)
        )

    def read(self, x: Any, *, needed: bool) -> Tensors | None:
        """Return the tensors of a value, by field, None for None; OperatorError where they do not fit."""
        if x is not None:
            return self._read("x", x, self.value)
        if needed:
            raise OperatorError("x is missing: this rank puts a value in")
        return None

    def _read(self, what: str, x: Any, shapes: TensorShapes) -> Tensors:
        structure, device = self.structure, self.structure.device
        parts = dict(zip(structure.names, structure.parts(x), strict=True))
        assert device is not None, "only values on devices are read here"
        for name, part in parts.items():
            if devices.device_of(part) is not device:
                place = getattr(part, "device", "host memory")
                words = in_words(what, name, parts)
                raise OperatorError(f"{words} is on {place}; the call was prepared for {device.place}")
        fields = {name: to_tensor(name if len(parts) > 1 else None, part) for name, part in parts.items()}
        check_shapes(what, fields, [(name, *of) for name, of in shapes.items()])
        return fields

    def writable(self, out: Any) -> Tensors:
        """Return the tensors of out, which fit and can be written; raises like `read`."""
        fields = self._read("out", out, self.result)
        check_writable(fields)
        return fields

    def empty(self) -> Tensors:
        """Return fresh tensors for a result."""
        import torch

        assert self.structure.device is not None
        place = self.structure.device.place
        return {name: torch.empty(shape, dtype=dtype, device=place) for name, (shape, dtype) in self.result.items()}


class DeviceCall(PreparedCall):
    """A collective made ready for values of one structure on one device; made by `Communicator.prepare`."""

    def __init__(
        self,
        session: Session,
        work: Work,
        structure: Structure,
        path: DevicePath,
        peer: PeerPlan | None,
        shards: Sequence[int] | None,
    ) -> None:
        assert path.in_flight is not None, "made where values are not staged"
        self.plan, self.tag = work.plan, work.tag
        self._session, self._device, self._in_flight = session, path.device, path.in_flight
        self._transport = path.transport if peer is None else None
        self.structure = structure
        own = 0 if shards is None else shards[work.rank + 1] - shards[work.rank]
        value = work.value if shards is None else Span(0, (own, *work.layout.leading))
        self._values_on_device = DeviceValues(structure, work.layout, value, work.result)
        with path.device.current():
            self._engine = load_together(session, lambda: _engine(work, path, peer, shards))
        self.engines = [self._engine]
        views = self._engine.views
        self._input = None if views is None else structure.give(views)
        self._input_fields = () if views is None else structure.parts(self._input)
        self._shared, self._identity = None, None
        self._gives = work.gives_result
        self._side: Any = None
        self._handle: Handle | None = None
        self._freed = False
        self.fast_path = None

    @property
    def moved_by(self) -> str:
        """What moves its data: a transport or a library's collective, by name, or "kernel" where one runs the call."""
        return "kernel" if self._transport is None else self.plan.native_call or self._transport.name

    @property
    def in_graphs(self) -> bool:
        """Whether a graph can record it."""
        return self._transport is None or self._transport.in_graphs

    @property
    def input(self) -> Any:
        """The user's structure with arrays that are the send buffer, always the same.

        Fill them on the stream that makes the call and pass `call.input` to skip the packing copy. None where the value
        has no place of its own: a plan by messages that splits it in several chunks.
        """
        return self._input

    def __call__(self, x: Any = None, *, out: Any = None) -> Any:
        """Put the collective on the current stream; as `PreparedCall`, with x and out on the device, which may overlap.

        The result is there for what comes later on that stream. A call asks whether those before it can still come
        through; `Communicator.synchronize` waits for them.
        """
        fields, given = self.fit(x, out)
        engine, number = self._enter()
        session = self._session
        try:
            with self._device.current():
                capturing = self._device.capturing()
                if not capturing:
                    self._in_flight.look()
                target = self.target(fields, given) if self._gives else None
                engine.begin(fields, target, True)
                result = self.finish(target, given, out)
                if capturing:
                    self._in_flight.keep(self._engine)
                else:
                    self._in_flight.add(self._engine, self.tag, number)
        except BaseException as error:
            session.fail_with(error)
            raise
        session.refusal = None
        return result

    def repeat(self, x: Any, out: Any) -> Any:
        return self(x, out=out)

    def let_go(self) -> None:
        """Nothing: calls that the device is not through with, and graphs, hold the engine; it goes with the last."""

    def start(self, x: Any = None, *, out: Any = None) -> Handle:
        """Begin the collective on a stream of its own, beside what is put on the current one later.

        It sees what was put on the current stream before. x and out must be left alone until the handle is through.

        Raises:
            OperatorError: x or out does not fit.
            TopocommError: A graph is being captured: put the call itself on the stream.
        """
        device, session = self._device, self._session
        if device.capturing():
            raise TopocommError(
                f"rank {session.rank}: start() cannot be captured in a graph, since handles wait on the host; call it"
            )
        fields, given = self.fit(x, out)
        engine, number = self._enter()
        try:
            with device.current():
                self._in_flight.look()
                target = self.target(fields, given) if self._gives else None
                self._side = self._side or device.new_stream()
                before = device.event()
                before.record(device.stream())
                self._side.wait_event(before)
                with device.on(self._side):
                    engine.begin(fields, target, True)
                    result = self.finish(target, given, out)
                for tensor in (*(fields or {}).values(), *(target or {}).values(), *(given or {}).values()):
                    device.keep(tensor, self._side)
                self._engine.mark()
        except BaseException as error:
            session.fail_with(error)
            raise
        session.refusal = None
        call = UnderWay(engine, self.tag, number)
        self._handle = Handle(session, call, lambda: result)
        session.waiting.under_way.append(call)
        return self._handle

    def fit(self, x: Any, out: Any, *, known: bool = False) -> tuple[Tensors | None, Tensors | None]:
        if not self.in_graphs and self._device.capturing():
            raise TopocommError(
                f"rank {self._session.rank}: this call's messages go by {self.moved_by}, and the host waits for them: "
                "no graph records that"
            )
        return super().fit(x, out, known=known)

    def _value(self, x: Any) -> Tensors | None:
        if x is not None and x is self._input and all(map(is_, self.structure.parts(x), self._input_fields)):
            return None
        return self._values_on_device.read(x, needed=self._engine.takes_value)

    def fit_result(self, out: Any) -> Tensors:
        target = self._values_on_device.writable(out)
        arena = self._engine.memory.untyped_storage().data_ptr()
        for name, tensor in target.items():
            if tensor.numel() and tensor.untyped_storage().data_ptr() == arena:
                raise OperatorError(f"out: field {name!r} lies in the call's send buffer; give another tensor")
        return target

    def target(self, fields: Tensors | None, given: Tensors | None) -> Tensors:
        """Return the caller's tensors if they are contiguous, else fresh ones."""
        if given is not None and all(tensor.is_contiguous() for tensor in given.values()):
            return given
        return self._values_on_device.empty()


def _engine(work: Work, path: DevicePath, peer: PeerPlan | None, shards: Sequence[int] | None) -> StreamEngine:
    """Return an engine with its kernels loaded."""
    engine: StreamEngine
    if peer is not None:
        assert path.peer is not None, "who plans for it has it"
        engine = PeerEngine(peer, path.device, path.peer, shards)
    else:
        assert path.transport is not None, "values are staged where there is none"
        if work.plan.native_call:
            engine = NativeEngine(work, path.device, path.transport)
        else:
            engine = DeviceEngine(work, path.device, path.transport, shards)
    engine.load()
    return engine


def load_together(session: Session, load: Callable[[], Loaded]) -> Loaded:
    """Have this rank's device load what a call runs there, while no rank's call waits on a device; collective.

    The ranks have agreed on the call, if they ever do: what they called before is on their streams then, and comes to
    its end.
    """

    def meet() -> None:
        gather_notes(session.waiting, b"1", tag=GATHER_TAG, what="the set-up of kernels")

    if session.transport.in_process and session.settings.check == "never":
        meet()
    loaded = load()
    if session.transport.in_process:
        meet()
    return loaded
