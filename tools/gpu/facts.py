"""Facts of a measurement: card, driver, clocks, power limit, versions.

python tools/gpu/facts.py [OUT]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from card import the_card
from harness.turns import Limit
from results import CALL, Results, first_line, program

PACKAGES = (
    "numpy", "torch", "triton", "numba", "cupy-cuda12x", "cupy-cuda13x", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
    "mpi4py", "transformers", "flash-attn", "flashinfer-python",
)  # fmt: skip
ASKED = (
    "driver_version", "vbios_version", "pstate", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem",
    "power.limit", "power.draw", "temperature.gpu", "memory.total", "mig.mode.current", "compute_mode",
    "ecc.mode.current",
)  # fmt: skip
"""Columns of `nvidia-smi --query-gpu`; nothing is set."""
VARIABLES = ("CUDA_", "NCCL_", "TRITON_", "PYTORCH_", "TOPOCOMM_")
"""Prefixes of variables that affect measurements."""


def work(results: Results, limit: Limit, args: argparse.Namespace) -> None:
    """Collect the facts and write them."""
    del limit, args
    card = the_card()
    results.data("card", card.name)
    rows: list[tuple[str, object]] = [("card", card.name), ("multiprocessors", card.cores)]
    if torch.cuda.is_available():
        told = torch.cuda.get_device_properties(card.place)
        rows += [
            ("compute capability", f"{told.major}.{told.minor}"),
            ("L2 MiB", getattr(told, "L2_cache_size", 0) >> 20),
        ]
        rows += [("memory GiB", f"{told.total_memory / 2**30:.1f}"), ("CUDA of torch", torch.version.cuda)]
        rows += [("memory that is free GiB", f"{card.free_bytes() / 2**30:.1f}")]
        results.data("memory_clock_mhz", getattr(told, "memory_clock_rate", 0) / 1e3)
    rows += [("NCCL", nccl_words())]
    rows += [(name, words) for name, words in smi().items()]
    rows += [(name, value) for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)]
    rows += [("system", platform.platform()), ("cores that may run this", len(os.sched_getaffinity(0)))]
    rows += [("python", platform.python_version())]
    rows += [(package, words) for package in PACKAGES if (words := installed(package))]
    results.data("facts", {name: str(value) for name, value in rows})
    results.table("Card, driver and versions", ["what", "value"], rows)


def installed(package: str) -> str | None:
    """Return the version of a package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def smi() -> dict[str, str]:
    """What nvidia-smi says of the first GPU, by column; it alone may be missing."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"nvidia-smi": first_line(error)}
    return dict(zip(ASKED, (cell.strip() for cell in done.stdout.splitlines()[0].split(",")), strict=False))


def nccl_words() -> str:
    """NCCL by CuPy and by torch, as each says it."""
    from topocomm import TopocommError
    from topocomm.execute.transports.device.nccl_library import load_nccl, version_text

    said = []
    try:
        said.append(f"{version_text(int(load_nccl().get_version()))} by CuPy")
    except (TopocommError, RuntimeError) as error:
        said.append(first_line(error))
    if torch.cuda.is_available():
        nccl: Any = torch.cuda.nccl
        said.append(f"{'.'.join(map(str, nccl.version()))} by torch")
    return "; ".join(said)


if __name__ == "__main__":
    call = os.environ.get(CALL)
    sys.exit(
        program(f"facts{call or ''}", f"What the figures{f' of call {call}' if call else ''} were measured with", work)
    )
