"""One Plan on one Transport with one Operator: a prepared call that allocates nothing but its result.

All buffers, requests and merges are set up once. A call packs the value into the arena (or finds it there), runs
the stages of this rank's program, and copies the result out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import OperatorError, PlanError
from topocomm.execute.structure import Fields, Structure, take
from topocomm.execute.transports.transport import Batch, Message, Transport
from topocomm.operators.operator import ALIGNMENT_BYTES, Buffer, Fold, Layout, Operator
from topocomm.planning.buffers import Piece, RankProgram, Stage, rank_program
from topocomm.planning.plan import Plan

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

BATCH_SPIN_S = 0.001
BUSY = "another call is running; one at a time"
Copies = list[tuple[str, slice, NDArray[Any]]]
"""(field, flattened rows, view on the arena) of every chunk."""


class BoundStage(NamedTuple):
    """Messages posted together, then folds."""

    batch: Batch | None
    folds: tuple[Fold, ...]


class PreparedCall:
    """A collective made ready for values of one structure; made by `Communicator.prepare`.

    Attributes:
        plan: What is executed.
        input: The user's structure with arrays that are this rank's packed send buffer, or None where the plan
            splits the payload in several chunks. Fill them and pass `call.input` to skip the packing copy; their
            contents stay as they are.
    """

    def __init__(
        self, comm: Communicator, plan: Plan, operator: Operator, layout: Layout, structure: Structure
    ) -> None:
        self.plan = plan
        self._comm = comm
        self._layout = layout
        self._structure = structure
        self.tag = comm.next_tag()
        program = program_of(plan, comm.transport.rank, layout)
        self._arena = aligned_buffer(program.arena_bytes)
        self._stages = _bind(program, comm.transport, self._arena, operator, layout, plan, self.tag)
        self._in = _copies(program, program.input_pieces, self._arena, layout, plan)
        self._out = _copies(program, program.output_pieces, self._arena, layout, plan)
        whole = len(plan.schedule.chunks) == 1
        self._whole_in = _whole(self._in, layout) if whole else None
        self._whole_out = _whole(self._out, layout) if whole else None
        self.input = structure.give(dict(self._whole_in)) if self._whole_in else None
        self._waiting = comm.waiting

    def __call__(self, x: Any = None, *, out: Any = None) -> Any:
        """Run the collective.

        Args:
            x: This rank's value: the structure, shapes and dtypes that the call was prepared for. None where this
                rank puts none in (broadcast, not the root).
            out: Where to write the result, the same structure; may be x. Nothing is allocated then.

        Returns:
            The result in x's structure, the caller's own; `out` where it is given; None on ranks without one.

        Raises:
            OperatorError: x does not fit.
            MismatchError: Another rank makes another call.
            DeadlineError: A rank did not come in time.
            RankFailedError: A rank reported a failure.
        """
        if x is not None and x is not self.input:
            self._check("x", take(x, self._structure.names))
        if out is not None and out is not x:
            self._check("out", take(out, self._structure.names))
        return self.run(x, out)

    def run(self, x: Any, out: Any) -> Any:
        """`__call__` without the checks of x and out, for callers that know them to fit."""
        comm = self._comm
        if comm.refusal is not None:
            comm.enter()  # raises, and says why
        comm.refusal = BUSY
        try:
            if x is not None and x is not self.input:
                self._pack(x)
            for batch, folds in self._stages:
                if batch is not None:
                    batch.start()
                    if not batch.wait(BATCH_SPIN_S):
                        self._waiting.for_batch(batch, self.tag)
                for fold in folds:
                    fold()
            result = self._unpack(out) if self._out else None
        except BaseException as error:
            comm.fail(error)
            raise
        comm.refusal = None
        return result

    def free(self) -> None:
        """Give back the requests."""
        for batch, _ in self._stages:
            if batch is not None:
                batch.free()
        self._stages = ()

    def _pack(self, x: Any) -> None:
        fields = x if type(x) is dict and not self._structure.is_torch else take(x, self._structure.names)
        if self._whole_in is not None:
            for name, view in self._whole_in:
                view[...] = fields[name]
        else:
            for name, rows, view in self._in:
                view[...] = self._flat(name, fields[name])[rows]

    def _unpack(self, out: Any) -> Any:
        if out is None and self._whole_out is not None:
            fresh = {name: view.copy() for name, view in self._whole_out}
            return self._structure.give(fresh)
        if out is None:
            fresh = {f.name: np.empty((*self._layout.leading, *f.row_shape), f.dtype) for f in self._layout.fields}
            self._copy_out(fresh)
            return self._structure.give(fresh)
        self._copy_out(out if type(out) is dict and not self._structure.is_torch else take(out, self._structure.names))
        return out

    def _copy_out(self, target: Fields) -> None:
        if self._whole_out is not None:
            for name, view in self._whole_out:
                target[name][...] = view
        else:
            for name, rows, view in self._out:
                self._flat(name, target[name])[rows] = view

    def _flat(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """The array as flattened rows."""
        row_shape = next(f.row_shape for f in self._layout.fields if f.name == name)
        return array.reshape((self._layout.rows, *row_shape))

    def _check(self, what: str, fields: Fields) -> None:
        for bound in self._layout.fields:
            got = fields[bound.name]
            shape = (*self._layout.leading, *bound.row_shape)
            if got.shape != shape or got.dtype != bound.dtype:
                raise OperatorError(
                    f"{what}: field {bound.name!r} must be {bound.dtype} {list(shape)} as prepared, "
                    f"got {got.dtype} {list(got.shape)}"
                )
            if what == "out" and not got.flags.writeable:
                raise OperatorError(f"out: field {bound.name!r} is read-only; give a writable array")
            if what == "out" and self._whole_out is None and not got.flags.c_contiguous:
                raise OperatorError(f"out: field {bound.name!r} must be C-contiguous for a plan of several chunks")


def program_of(plan: Plan, rank: int, layout: Layout) -> RankProgram:
    """This rank's stages and memory.

    Raises:
        PlanError: The plan was made for another number of rows.
    """
    if plan.schedule.rows != layout.rows:
        raise PlanError(f"the plan is for {plan.schedule.rows} rows, the value has {layout.rows}; plan for it")
    rows = [rows for _, rows in plan.schedule.chunks]
    return rank_program(plan.schedule, rank, lambda chunk: layout.packed_bytes(rows[chunk]), ALIGNMENT_BYTES)


def aligned_buffer(size_bytes: int) -> Buffer:
    """A zeroed byte buffer that starts on a cache line."""
    raw = np.zeros(size_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    return raw[start : start + size_bytes]


def _bind(
    program: RankProgram,
    transport: Transport,
    arena: Buffer,
    operator: Operator,
    layout: Layout,
    plan: Plan,
    tag: int,
) -> tuple[BoundStage, ...]:
    rows = [rows for _, rows in plan.schedule.chunks]

    def ranges(pieces: Sequence[Piece]) -> tuple[tuple[int, int], ...]:
        return tuple((program.offsets[piece], layout.packed_bytes(rows[piece[1]])) for piece in pieces)

    def bind(stage: Stage) -> BoundStage:
        sends = [Message(peer, ranges(pieces)) for (_, peer, _), pieces in stage.sends.items()]
        receives = [Message(peer, ranges(pieces)) for (_, peer, _), pieces in stage.receives.items()]
        folds = []
        for fold in stage.folds:
            offsets = [program.offsets[slot, fold.chunk] for slot in (fold.out_slot, *fold.operands)]
            folds.append(operator.bind_fold(layout, arena, rows[fold.chunk], offsets))
        batch = transport.batch(arena, sends, receives, tag) if sends or receives else None
        return BoundStage(batch, tuple(folds))

    return tuple(bind(stage) for stage in program.stages)


def _copies(program: RankProgram, pieces: Sequence[Piece], arena: Buffer, layout: Layout, plan: Plan) -> Copies:
    found: Copies = []
    for slot, chunk in pieces:
        first, rows = plan.schedule.chunks[chunk]
        for name, view in layout.views(arena, program.offsets[slot, chunk], rows).items():
            found.append((name, slice(first, first + rows), view))
    return found


def _whole(copies: Copies, layout: Layout) -> list[tuple[str, NDArray[Any]]]:
    """The views of a single chunk in the user's shapes."""
    shapes = {f.name: (*layout.leading, *f.row_shape) for f in layout.fields}
    return [(name, view.reshape(shapes[name])) for name, _, view in copies]
