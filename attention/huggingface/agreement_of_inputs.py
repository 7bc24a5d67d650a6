"""Whether all ranks run the same model on the same inputs: what differs would give wrong tokens on every rank."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from topocomm import Communicator, MismatchError

INPUTS = ("input_ids", "inputs_embeds", "attention_mask", "position_ids")
"""Tensors of `generate` and of a forward pass that are the same on every rank."""
PLAIN = (bool, int, float, str, type(None))


def agree_on_inputs(comm: Communicator, arguments: Mapping[str, Any]) -> None:
    """Compare a call's prompt, mask and options with those of the other ranks; collective, one small exchange.

    Args:
        comm: The ranks.
        arguments: Of `generate`, by name; tensors are read to host memory.

    Raises:
        MismatchError: Ranks differ; on every rank, naming the ranks and what differs.
    """
    if comm.size == 1 or comm.session.settings.check == "never":
        return
    digests = {name: _digest(arguments.get(name)) for name in INPUTS}
    options = {name: x for name, x in sorted(arguments.items()) if name not in INPUTS and isinstance(x, PLAIN)}
    digests["options"] = _hash(repr(options).encode())
    _compare(comm, "generate", digests, "call it with the same inputs and options on all ranks")


def agree_on_weights(function: str, comm: Communicator, model: torch.nn.Module) -> None:
    """Compare a model's weights with those of the other ranks: names, shapes, dtypes and sums of bits; collective.

    Every weight is read once, so this takes about as long as to copy them.

    Raises:
        MismatchError: Ranks differ; on every rank, naming the ranks and the first weight that differs.
    """
    if comm.size == 1 or comm.session.settings.check == "never":
        return
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    names = "\n".join(f"{name} {list(x.shape)} {x.dtype}" for name, x in weights.items())
    remedy = "load the same weights on all ranks"
    _compare(comm, function, {"the names, shapes or dtypes of weights": _hash(names.encode())}, remedy)
    _compare(comm, function, dict(zip(weights, _sums_of_bits(list(weights.values())), strict=True)), remedy)


def _compare(comm: Communicator, function: str, digests: Mapping[str, int], remedy: str) -> None:
    own = np.array([*digests.values()], np.int64)
    rows = np.stack([record.view(np.int64) for record in comm.allgather_bytes(own.view(np.uint8))])
    unlike = rows != rows[0]
    if unlike.any():
        at = int(unlike.any(0).argmax())
        ranks = ", ".join(str(rank) for rank in np.flatnonzero(unlike[:, at]))
        raise MismatchError(
            f"rank {comm.rank}: {function}: rank{'s' if ',' in ranks else ''} {ranks} and rank 0 differ in "
            f"{[*digests][at]}; {remedy}"
        )


def _digest(x: Any) -> int:
    if not isinstance(x, torch.Tensor):
        return _hash(repr(x).encode()) if isinstance(x, PLAIN) else 0
    array = x.detach().cpu().contiguous()
    return _hash(f"{list(x.shape)} {x.dtype}".encode() + array.view(torch.uint8).numpy().tobytes())


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), signed=True)


def _sums_of_bits(weights: list[torch.Tensor]) -> list[int]:
    """Of every weight the sum of its bits as integers of 8 bytes, which wraps; from a GPU all are read at once."""
    sums = [_sum_of_bits(x.detach()) for x in weights]
    found = [0] * len(sums)
    for device in {x.device for x in sums}:
        places = [place for place, x in enumerate(sums) if x.device == device]
        for place, value in zip(places, torch.stack([sums[place] for place in places]).tolist(), strict=True):
            found[place] = value
    return found


def _sum_of_bits(x: torch.Tensor) -> torch.Tensor:
    raw = x.contiguous().flatten().view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = raw.numel() // 8 * 8
    return raw[:whole].view(torch.int64).sum() + raw[whole:].sum()
