"""Where a job computes: in host memory, or on the GPU of each rank."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from attention.jobs.job_launch import InputError, launched_as
from topocomm import Communicator
from topocomm.extend import prepare_for_threads

if TYPE_CHECKING:
    import torch


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device` to a command."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda: each rank on a GPU, AMD's too (default cpu)"
    )


def check_device(device: str, ranks: int) -> None:
    """Refuse a device that this process does not have, and set what CUDA needs for ranks on threads.

    CUDA has not been started in this process.

    Raises:
        InputError: torch sees no GPU.
    """
    import torch

    if device == "cuda" and ranks > 1 and launched_as() is None:
        prepare_for_threads()  # `is_available` may start CUDA, which reads it then
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; install torch for this machine's, or leave it out")


def device_of_rank(comm: Communicator, device: str, *, shared: bool = False) -> torch.device:
    """Return where this rank computes; a GPU is made current, with a stream of its own for a rank on a thread.

    On one stream, kernels of ranks that wait for each other would stand behind each other.

    Args:
        comm: The ranks: each has the GPU on which the topology places it, else they take the visible ones in turn.
        device: As `--device` says.
        shared: Ranks on threads all take the first GPU, since they share what lies there.
    """
    import torch

    if device == "cpu":
        return torch.device("cpu")
    index, on_threads = comm.gpu, launched_as() is None
    if index is None:
        index = 0 if shared and on_threads else comm.rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    if on_threads:
        torch.cuda.set_stream(torch.cuda.Stream(index))  # type: ignore[no-untyped-call]
    return torch.device("cuda", index)
