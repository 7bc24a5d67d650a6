"""One call of NCCL, and what its messages cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topocomm.planning.libraries.job_shape import JobShape
from topocomm.planning.libraries.library_figures import Figures
from topocomm.planning.libraries.nccl_times import Rates, rates_of
from topocomm.planning.routing.routes import Ints
from topocomm.topology.model import Topology


@dataclass(frozen=True)
class NcclCall:
    """One call: what is needed to send its messages."""

    topology: Topology
    shape: JobShape
    figures: Figures
    collective: str
    payload_bytes: int
    protocol: str

    def rates(self, *, ring: bool) -> Rates:
        """Return the rates of the call's channels."""
        return rates_of(self.shape, self.figures, self.protocol, self.payload_bytes, ring=ring)

    def is_far(self, src: Ints, dst: Ints) -> Any:
        """Return bool [n]: whether messages between these ranks leave their group."""
        return src // self.shape.per_host != dst // self.shape.per_host

    def wire(self, far: Any) -> Any:
        """Return float64 [n]: bytes on the wire of one byte of payload."""
        share = self.figures.get(f"nccl.share.{self.protocol}", 1.0)
        inside = self.figures[f"efficiency.{self.shape.inner}"]
        return 1 / (share * np.where(far, self.figures["efficiency.network"], inside))

    def channel_gb_per_s(self) -> float:
        """Return GB/s of payload of one channel, whatever the links have."""
        free = replace(self.shape, inner_gb_per_s=1e9, network_gb_per_s=1e9)
        return rates_of(free, self.figures, self.protocol, self.payload_bytes, ring=True).inside / 1e3
