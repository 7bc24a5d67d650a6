"""The memory of one rank that all ranks of its host map, and what their kernels agree upon.

One memory serves all calls of a communicator, in the order in which they are made: at most one of its kernels runs at a
time on a rank, on whatever stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topocomm.errors import DeadlineError
from topocomm.execute.device.device_library import Device
from topocomm.execute.transports.device.peer_mapping import Mapping

MOST_RANKS = 64
FLAGS_AT_BYTES = 8 * (32 + MOST_RANKS)
"""As the kernel has it: the state and what ranks are through with come before the flags."""
FLAG_BYTES = 8
CONTROL_BYTES = 4 * (1 + MOST_RANKS)
TICKS_A_SECOND = {"cuda": 1e9, "hip": 1e8, "interpreter": 3e3}
"""How the kernel takes the time; the interpreter counts looks at flags, of which it makes a few thousand a second."""
DEVICE_SHARE = 7 / 8
"""Of a time limit, what a wait on a device may take: it knows whom it awaits, so it is to speak before the host."""


class Room(NamedTuple):
    """What there is room for in one rank's memory.

    Attributes:
        flags: Enough for 256 tiles in 16 stages between 16 ranks.
        arena_bytes: Of one of the two arenas: what 16 ranks get in a flat exchange of the most that goes this way.
    """

    flags: int = 1 << 16
    arena_bytes: int = 4 << 20

    @property
    def arenas_at(self) -> int:
        """The byte at which the arenas begin."""
        return FLAGS_AT_BYTES + FLAG_BYTES * self.flags

    @property
    def total_bytes(self) -> int:
        """Of the memory."""
        return self.arenas_at + 2 * self.arena_bytes


PLENTY = Room()


class PeerMemory:
    """What one rank's kernels know of the memories.

    Each rank's memory is mapped here at its address; zeros were written to all of them before any rank began.

    Attributes:
        programs: How many programs of a kernel surely run at the same time on the GPU of every rank.
        backend: "cuda", "hip" or "interpreter".
        crowded: Whether ranks share a GPU, as threads of one process.
        control: Address of what the host and the kernels tell each other.
        last: The stream of the last call; None before the first.
        table: int64 [ranks] on the device: the addresses.
    """

    def __init__(
        self,
        device: Device,
        rank: int,
        addresses: Sequence[int],
        *,
        programs: int,
        backend: str,
        timeout_s: float,
        crowded: bool = False,
        mapping: Mapping | None = None,
        room: Room = PLENTY,
    ) -> None:
        import torch

        self.rank, self.size, self.own = rank, len(addresses), addresses[rank]
        self.programs, self.backend, self.crowded = programs, backend, crowded
        self.room = room
        self.limit = int(timeout_s * DEVICE_SHARE * TICKS_A_SECOND[backend])
        self.table = torch.tensor(addresses, dtype=torch.int64).to(device.place)
        self.last: Any = None
        self._timeout_s, self._mapping = timeout_s, mapping
        self._pinned = device.pinned(CONTROL_BYTES)
        self._control = self._pinned.numpy().view(np.int32)
        self._control[:] = 0
        self.control = int(self._pinned.data_ptr())

    def check(self, peers: Sequence[int] = ()) -> None:
        """Raise DeadlineError where a wait on the device has taken its time."""
        del peers  # the device has told whom it awaited
        awaited = np.flatnonzero(self._control[1:]).tolist()
        if awaited and not self._control[0]:
            ranks = f"rank{'s' * (len(awaited) > 1)} {', '.join(map(str, awaited))}"
            raise DeadlineError(
                f"rank {self.rank}: its GPU still waits for {ranks} after {self._timeout_s:g} s, inside the host "
                "(limit: TOPOCOMM_TIMEOUT_S)"
            )

    def abort(self) -> None:
        """End the waits of all kernels, those to come too."""
        self._control[0] = 1

    def leave(self) -> None:
        """Give back the others' memory; no kernel of this rank runs any more."""
        if self._mapping is not None:
            self._mapping.leave()

    def close(self) -> None:
        """Give back this rank's own; all ranks have left."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            mapping.free()
