"""One Plan on one Transport with one Operator: a prepared call that allocates nothing but its result.

All buffers, requests and merges are set up once. A call packs the value into the send buffer (or finds it there),
runs the stages of this rank's program, and copies the result out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from topocomm.errors import OperatorError
from topocomm.execute.lanes import Work
from topocomm.execute.make_lanes import make_lanes
from topocomm.execute.structure import Fields, Structure, take
from topocomm.execute.transports.transport import Batch

if TYPE_CHECKING:
    from topocomm.execute.communicator import Communicator

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
        self._lanes = make_lanes(work, comm.waiting, self._wait_long)
        self._inputs = [None if lane.views is None else structure.give(lane.views) for lane in self._lanes]
        self._turn, self._turns = 0, len(self._lanes)
        self._shapes = [(f.name, (*work.layout.leading, *f.row_shape), f.dtype) for f in work.layout.fields]

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
        if x is None and self._lanes[0].takes_value:
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
        comm.calls += 1
        turn = self._turn
        lane = self._lanes[turn]
        try:
            fields = None if x is None or x is self._inputs[turn] else self._structure.fields(x)
            given = None if out is None or not lane.gives_result else self._structure.fields(out)
            target = self._target(given) if lane.gives_result else None
            lane.run(fields, target, given is not None)
            if given is not None and target is not None and target is not given:
                for name, array in given.items():
                    array[...] = target[name]
        except BaseException as error:
            comm.fail(error)
            raise
        self._turn = (turn + 1) % self._turns
        comm.refusal = None
        if target is None or given is not None:
            return None if target is None else out
        return self._structure.give(target)

    @property
    def has_quick_way(self) -> bool:
        """Whether `quick` can take values of this structure."""
        plain = self._structure.rebuild is None and not self._structure.is_torch
        return plain and self._lanes[0].has_quick_way

    def quick(self, x: Any) -> Any:
        """`run` for a dict of NumPy arrays as the call was prepared for; None, and nothing done, for anything else.

        The check of x costs nothing here: it is part of the compiled call.
        """
        comm = self._comm
        if type(x) is not dict or len(x) != len(self._shapes) or comm.refusal is not None:
            return None
        comm.refusal = BUSY
        turn = self._turn
        try:
            result = self._lanes[turn].quick(x)
        except BaseException as error:
            comm.fail(error)
            raise
        comm.refusal = None
        if result is not None:
            comm.calls += 1
            self._turn = 1 - turn
        return result

    def free(self) -> None:
        """Give back the requests."""
        for lane in self._lanes:
            lane.free()

    def _target(self, given: Fields | None) -> Fields:
        """Where the result goes: to the caller's arrays if they are C-contiguous, else to fresh ones."""
        if given is not None and all(array.flags.c_contiguous for array in given.values()):
            return given
        return {name: np.empty(shape, dtype) for name, shape, dtype in self._shapes}

    def _wait_long(self, batch: Batch) -> None:
        self._comm.announce(self.tag)
        self._comm.waiting.for_batch(batch, self.tag)

    def _check(self, what: str, fields: Fields) -> None:
        for name, shape, dtype in self._shapes:
            got = fields[name]
            if got.shape != shape or got.dtype != dtype:
                raise OperatorError(
                    f"{what}: field {name!r} must be {dtype} {list(shape)} as prepared, "
                    f"got {got.dtype} {list(got.shape)}"
                )
            if what == "out" and not got.flags.writeable:
                raise OperatorError(f"out: field {name!r} is read-only; give a writable array")
