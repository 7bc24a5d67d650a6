"""What a call of any library takes, by the words with which benchmarks name it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from topocomm.planning.libraries.job_shape import JobShape
from topocomm.planning.libraries.library_figures import Figures
from topocomm.planning.libraries.nccl_choice import NEWEST, PROTOCOLS, Version
from topocomm.planning.libraries.nccl_times import TunerSettings, nccl_us, rccl_us
from topocomm.simulation.libraries.mpi.mpi_times import mpi_us

Kind = Literal["nccl", "rccl", "openmpi", "mpich"]


NEWEST_OPEN_MPI = (5, 0)
"""Assumed where the version is not known."""


class Library(NamedTuple):
    """A library as it was run.

    Attributes:
        kind: Which one.
        version: Its version; of MPICH not used.
        on_device: Whether payloads lie in device memory.
        has_ll128: Whether NCCL's LL128 is in use; None: by NCCL's rule.
        algorithms: Those that NCCL_ALGO allows; empty: all.
        protocols: Those that NCCL_PROTO allows; empty: all.
    """

    kind: Kind
    version: Version = NEWEST
    on_device: bool = True
    has_ll128: bool | None = None
    algorithms: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()


def library_named(words: str, *, on_device: bool) -> Library:
    """Return the library of a benchmark's words ("NCCL 2.8.4-1, nccl-tests", "Open MPI 4.0.5 + UCX").

    Without a name it is NCCL where device memory is moved and nothing speaks of MPI, else Open MPI, the one that OSU's
    logs are mostly from.
    """
    lower = words.lower()
    found = re.search(r"\b(?:nccl|open mpi)\s*v?(\d+)\.(\d+)", lower)
    version = (int(found[1]), int(found[2])) if found else NEWEST
    if "rccl" in lower:
        return Library("rccl", NEWEST, on_device)
    speaks_of_mpi = any(word in lower for word in ("mpi", "osu", "mvapich", "ucx"))
    if "nccl" in lower or (on_device and not speaks_of_mpi):
        return Library("nccl", version, on_device)
    is_mpich = any(name in lower for name in ("mpich", "intel mpi", "mvapich", "cray mpi"))
    return Library("mpich" if is_mpich else "openmpi", version if found else NEWEST_OPEN_MPI, on_device)


def with_settings(library: Library, env: Mapping[str, str]) -> Library:
    """Return the library with the algorithms and protocols that NCCL's settings allow; lists of exclusions are left."""
    names = {"nvlstree": "nvls-tree"}
    algorithms = [names.get(name, name) for name in env.get("NCCL_ALGO", "").lower().split(",") if name]
    protocols = [name.lower() for name in env.get("NCCL_PROTO", "").split(",") if name]
    known = {name.lower(): name for name in PROTOCOLS}
    return library._replace(
        algorithms=tuple(name for name in algorithms if name in ("ring", "tree", "nvls", "nvls-tree", "pat")),
        protocols=tuple(known[name] for name in protocols if name in known),
    )


def library_us(
    library: Library, shape: JobShape, figures: Figures, collective: str, payload_bytes: int, *, pairs: int = 1
) -> float:
    """Return the predicted time in us of a call.

    Raises:
        PlanError: The library has no such collective, or its rules are not known.
    """
    if library.kind == "nccl":
        settings = TunerSettings(library.version, library.has_ll128, library.algorithms, library.protocols)
        return nccl_us(shape, figures, collective, payload_bytes, settings)
    if library.kind == "rccl":
        return rccl_us(shape, figures, collective, payload_bytes)
    return mpi_us(
        shape,
        figures,
        collective,
        payload_bytes,
        library=library.kind,
        on_device=library.on_device,
        pairs=pairs,
        version=library.version,
    )
