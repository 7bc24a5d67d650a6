"""NCCL in CuPy: availability, version, and its unique id as bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from topocomm.errors import TopocommError, install_command

MULTI_RANK = "NCCL_MULTI_RANK_GPU_ENABLE"
MULTI_RANK_SINCE = 23000
ID_BYTES = 128


class Facts(NamedTuple):
    """Facts that ranks exchange before NCCL is set up.

    Attributes:
        gpu: Unique id of the rank's GPU in the job.
        address: PCI address of the GPU, for messages.
        version: NCCL's version code; None where there is no NCCL.
        why: Why there is none.
        multi: Whether this rank allows several ranks on one GPU.
        group: Whether its communicator was made of a torch process group with NCCL or RCCL.
        mpi: Why its MPI is not given device memory; empty if it says that it takes it.
    """

    gpu: str
    address: str
    version: int | None
    why: str
    multi: bool
    group: bool = False
    mpi: str = "the ranks are not joined by MPI"


def load_nccl() -> Any:
    """Return the module `cupy.cuda.nccl`.

    Raises:
        TopocommError: CuPy or its NCCL is not there, or cannot be loaded.
    """
    how_to = f"{install_command('nccl-cu12')}, or for CUDA 13: {install_command('nccl-cu13')}"
    try:
        from cupy.cuda import nccl  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError as error:
        raise TopocommError(f"{error.name or 'cupy'} is not installed; {how_to}") from None
    except (ImportError, OSError) as error:
        raise TopocommError(f"CuPy's NCCL cannot be loaded ({str(error).splitlines()[0]}); {how_to}") from None
    if not getattr(nccl, "available", True):
        raise TopocommError(f"this CuPy has no NCCL; {how_to}")
    return nccl


def version_text(code: int) -> str:
    """Return "2.27.3" for 22703, NCCL's form since 2.9."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code >= 10000 else f"code {code}"


def allows_several(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment lets NCCL take several ranks on one GPU."""
    return environment.get(MULTI_RANK, "").strip() == "1"


def refusal(facts: Sequence[Facts]) -> str | None:
    """Why these ranks cannot use NCCL together, in words; None if they can. Facts are in rank order."""
    missing = [f"rank {rank}: {fact.why}" for rank, fact in enumerate(facts) if fact.version is None]
    if missing:
        return "; ".join(missing[:4])
    versions: dict[int | None, int] = {}
    for rank, fact in enumerate(facts):
        versions.setdefault(fact.version, rank)
    if len(versions) > 1:
        listed = ", ".join(f"{version_text(code or 0)} on rank {rank}" for code, rank in versions.items())
        return f"NCCL is {listed}; install one version everywhere"
    return _shared_gpu(facts)


def group_refusal(facts: Sequence[Facts]) -> str | None:
    """Return why these ranks cannot use their torch process group instead; None if they can."""
    if not all(fact.group for fact in facts):
        return "the communicator was made of no process group with the backend nccl"
    return "ranks share a GPU" if len({fact.gpu for fact in facts}) < len(facts) else None


def mpi_refusal(facts: Sequence[Facts]) -> str | None:
    """Return why these ranks do not give MPI device memory; None if they do."""
    reasons = [f"rank {rank}: {fact.mpi}" for rank, fact in enumerate(facts) if fact.mpi]
    return "; ".join(reasons[:4]) or None


def _shared_gpu(facts: Sequence[Facts]) -> str | None:
    by_gpu: dict[str, list[int]] = {}
    for rank, fact in enumerate(facts):
        by_gpu.setdefault(fact.gpu, []).append(rank)
    shared = [ranks for ranks in by_gpu.values() if len(ranks) > 1]
    version = facts[0].version or 0
    if not shared or (version >= MULTI_RANK_SINCE and all(facts[rank].multi for ranks in shared for rank in ranks)):
        return None
    ranks = shared[0]
    names = ", ".join(map(str, ranks[:8]))
    return (
        f"ranks {names} give tensors on one GPU ({facts[ranks[0]].address}), and NCCL takes one rank a GPU; give each "
        f"its own (torch.cuda.set_device), or set {MULTI_RANK}=1 on all ranks with NCCL 2.30 or later "
        f"(here: {version_text(version)})"
    )


def id_to_bytes(unique_id: Any) -> bytes:
    """Return NCCL's unique id as bytes; before version 14 CuPy has a tuple of signed numbers."""
    return unique_id if isinstance(unique_id, bytes) else bytes(number & 0xFF for number in unique_id)


def make_communicator(nccl: Any, size: int, unique_id: bytes, rank: int) -> Any:
    """Make this rank's NcclCommunicator; waits until all ranks make theirs."""
    try:
        return nccl.NcclCommunicator(size, unique_id, rank)
    except TypeError:  # a CuPy before 14, which says so before it begins
        signed = tuple(number - 256 if number > 127 else number for number in unique_id)
        return nccl.NcclCommunicator(size, signed, rank)
