"""Plain NCCL through CuPy, to compare our transports with."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from topocomm import Communicator
from topocomm.execute.transports.device.nccl_library import (
    ID_BYTES,
    MULTI_RANK_SINCE,
    id_to_bytes,
    load_nccl,
    make_communicator,
    version_text,
)


class Library(Protocol):
    """The two collectives of the alternatives, on tensors of the card and the current stream."""

    def all_reduce(self, x: torch.Tensor, op: str) -> None:
        """Reduce float32 values of all ranks in place by "sum" or "max"."""

    def all_gather(self, x: torch.Tensor, into: torch.Tensor) -> None:
        """Gather all ranks' bytes in rank order."""


class RawNccl:
    """NCCL between the ranks of a communicator; made by all of them.

    Raises:
        RuntimeError: NCCL is too old to have several ranks on one GPU.
        TopocommError: CuPy or NCCL is not there.
    """

    def __init__(self, comm: Communicator, place: torch.device) -> None:
        self._nccl: Any = load_nccl()
        version = int(self._nccl.get_version())
        if version < MULTI_RANK_SINCE:
            raise RuntimeError(
                f"NCCL {version_text(version)} takes one rank a GPU; 2.30 or later is needed (NCCL_DIR, see run.sh)"
            )
        self._place = place
        unique_id = np.zeros(ID_BYTES, np.uint8)
        if comm.rank == 0:
            unique_id[:] = np.frombuffer(id_to_bytes(self._nccl.get_unique_id()), np.uint8)
        unique_id = comm.allgather_bytes(unique_id)[0]
        with torch.cuda.device(place):
            self._made = make_communicator(self._nccl, comm.size, unique_id.tobytes(), comm.rank)

    @property
    def version(self) -> str:
        """Version of the library, as "2.30.7"."""
        return version_text(int(self._nccl.get_version()))

    def all_reduce(self, x: torch.Tensor, op: str) -> None:
        """As `Library`."""
        which = {"sum": self._nccl.NCCL_SUM, "max": self._nccl.NCCL_MAX}[op]
        at = x.data_ptr()
        self._made.allReduce(at, at, x.numel(), self._nccl.NCCL_FLOAT32, which, self._stream())

    def all_gather(self, x: torch.Tensor, into: torch.Tensor) -> None:
        """As `Library`."""
        self._made.allGather(x.data_ptr(), into.data_ptr(), x.numel(), self._nccl.NCCL_UINT8, self._stream())

    def close(self) -> None:
        """Destroy the communicator; a second call does nothing."""
        if self._made is not None:
            self._made.destroy()
            self._made = None

    def _stream(self) -> int:
        return int(torch.cuda.current_stream(self._place).cuda_stream)
