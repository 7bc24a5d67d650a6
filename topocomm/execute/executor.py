"""One Plan on one Transport with one Operator: a prepared call that allocates nothing but its result.

All buffers, requests and merges are set up once. A call packs the value into the send buffer (or finds it there),
runs the stages of this rank's program, and copies the result out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topocomm.errors import OperatorError
from topocomm.execute.lanes import Lane, Work, make_lanes
from topocomm.execute.structure import Fields, Structure, take

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

SPIN_S = 0.001
BUSY = "another call is running; one at a time"


class PreparedCall:
    """A collective made ready for values of one structure; made by `Communicator.prepare`.

    Attributes:
        plan: What is executed.
    """

    def __init__(self, comm: Communicator, work: Work, structure: Structure) -> None:
        self.plan = work.plan
        self.tag = work.tag
        self._comm = comm
        self._layout = work.layout
        self._structure = structure
        self._waiting = comm.waiting
        self._lanes = make_lanes(work, comm.waiting)
        self._inputs = [_given(structure, lane.fields_in()) for lane in self._lanes]
        self._turn = 0

    @property
    def input(self) -> Any:
        """The user's structure with arrays that are the send buffer of the next call.

        Fill them and pass `call.input` to skip the packing copy. Ask for it anew before each call: buffers take
        turns, and one of an earlier call is refused. None where the plan splits the payload in several chunks.
        """
        return self._inputs[self._turn]

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
            if any(x is other for other in self._inputs):
                raise OperatorError("x is the send buffer of an earlier call; take `call.input` anew before each call")
            self._check("x", take(x, self._structure.names))
        if x is None and self._lanes[0].inputs.parts:
            raise OperatorError("x is missing: this rank puts a value in")
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
            lane = self._lanes[self._turn]
            if x is not None and x is not self._inputs[self._turn]:
                self._pack(lane, x)
            comm.announce(self.tag)
            if lane.state is not None:
                lane.state[0] += 1
                self._turn ^= 1
            for batch, folds in lane.stages:
                if batch is not None:
                    batch.start()
                    if not batch.wait(SPIN_S):
                        self._waiting.for_batch(batch, self.tag)
                for fold in folds:
                    fold()
            result = self._unpack(lane, out) if lane.outputs.parts else None
        except BaseException as error:
            comm.fail(error)
            raise
        comm.refusal = None
        return result

    def free(self) -> None:
        """Give back the requests."""
        for lane in self._lanes:
            lane.free()

    def _pack(self, lane: Lane, x: Any) -> None:
        fields = x if type(x) is dict and not self._structure.is_torch else take(x, self._structure.names)
        if lane.inputs.whole is not None:
            for name, view in lane.inputs.whole:
                view[...] = fields[name]
        else:
            for name, rows, view in lane.inputs.parts:
                view[...] = self._flat(name, fields[name])[rows]

    def _unpack(self, lane: Lane, out: Any) -> Any:
        if out is not None:
            plain = type(out) is dict and not self._structure.is_torch
            self._copy_out(lane, out if plain else take(out, self._structure.names))
            return out
        if lane.outputs.whole is not None:
            return self._structure.give({name: view.copy() for name, view in lane.outputs.whole})
        fresh: Fields = {f.name: np.empty((*self._layout.leading, *f.row_shape), f.dtype) for f in self._layout.fields}
        self._copy_out(lane, fresh)
        return self._structure.give(fresh)

    def _copy_out(self, lane: Lane, target: Fields) -> None:
        if lane.outputs.whole is not None:
            for name, view in lane.outputs.whole:
                target[name][...] = view
        else:
            for name, rows, view in lane.outputs.parts:
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
            if what == "out" and len(self.plan.schedule.chunks) > 1 and not got.flags.c_contiguous:
                raise OperatorError(f"out: field {bound.name!r} must be C-contiguous for a plan of several chunks")


def _given(structure: Structure, fields: Fields | None) -> Any:
    return None if fields is None else structure.give(fields)
