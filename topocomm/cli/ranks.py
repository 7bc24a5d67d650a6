"""`--ranks N|GPU0,GPU2,...`: which endpoints hold ranks, in rank order."""

from __future__ import annotations

import re

from topocomm.errors import PlanError
from topocomm.topology.model import Topology


def parse_ranks(text: str | None, topology: Topology) -> tuple[str, ...] | None:
    """Endpoints for `--ranks`: a count of the first ones, or a list of ids; None where nothing was given.

    Raises:
        PlanError: The count is not one that the topology has endpoints for.
    """
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        return tuple(part.strip() for part in text.split(","))
    count, most = int(text), len(topology.endpoints)
    if not 1 <= count <= most:
        raise PlanError(f"--ranks {count}: topology {topology.name!r} has {most} endpoints; expected 1 to {most}")
    return topology.endpoints[:count]
