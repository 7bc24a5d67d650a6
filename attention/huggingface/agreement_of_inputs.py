"""Whether all ranks run the same model on the same inputs: what differs would give wrong tokens on every rank."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from attention.huggingface.weights.mapped_pages import release_pages
from topocomm import Communicator, MismatchError
from topocomm.extend import difference

INPUTS = ("input_ids", "inputs_embeds", "attention_mask", "position_ids")
"""Tensors of `generate` and of a forward pass that are the same on every rank."""
NO_OPTIONS: Mapping[str, str] = MappingProxyType({})
PLAIN = (bool, int, float, str)


def agree_on_inputs(comm: Communicator, arguments: Mapping[str, Any]) -> None:
    """Compare a call's prompt, mask and plain options with those of the other ranks; collective, one small exchange.

    Args:
        comm: The ranks.
        arguments: Of `generate`, by name; tensors are read to host memory, lists and objects are not compared, and
            None is as good as an argument left out.

    Raises:
        MismatchError: Ranks differ; on every rank, naming the ranks and what differs.
    """
    if comm.size == 1 or comm.session.settings.check == "never":
        return
    digests = {name: _digest(arguments.get(name)) for name in INPUTS}
    options = {name: repr(x) for name, x in sorted(arguments.items()) if name not in INPUTS and isinstance(x, PLAIN)}
    digests["options"] = _hash(repr(options).encode())
    _compare(comm, "generate", digests, "call it with the same inputs and options on all ranks", options)


def agree_on_weights(
    function: str,
    comm: Communicator,
    model: torch.nn.Module,
    but: frozenset[str] = frozenset(),
    *,
    releases: bool = False,
) -> None:
    """Compare a model's weights with those of the other ranks: names, shapes, dtypes and sums of bits; collective.

    Those named in `but` are each rank's own. With `releases` the memory of those that lie in mapped files is given back
    after each was read, for a model that is cut next.

    Every weight is read once, so this takes about as long as to copy them; and again where they have changed. Weights
    that are elsewhere or no plain tensors (offloaded, quantised, distributed) are compared by name, shape and dtype.

    Raises:
        MismatchError: Ranks differ; on every rank, naming the ranks and the first weight that differs.
    """
    if comm.size == 1 or comm.session.settings.check == "never":
        return
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    weights = {name: x for name, x in weights.items() if name not in but}
    names = "\n".join(f"{name} {list(x.shape)} {x.dtype}" for name, x in weights.items())
    remedy = "load the same weights on all ranks"
    _compare(comm, function, {"the names, shapes or dtypes of weights": _hash(names.encode())}, remedy)
    plain = [x.data for x in weights.values()]
    state = [
        None if _elsewhere(x) else (x.data_ptr(), 0 if weight.is_inference() else weight._version)
        for x, weight in zip(plain, weights.values(), strict=True)
    ]
    with _LOCK:
        known = _known.get(model)
        if known is None or known[0] != state:
            known = _known[model] = state, _sums_of_bits(plain, releases)
    _compare(comm, function, dict(zip(weights, known[1], strict=True)), remedy)


_known: WeakKeyDictionary[torch.nn.Module, tuple[list[Any], list[int]]] = WeakKeyDictionary()
"""Of a model, addresses and versions of its weights when they were read, and the sums of their bits."""
_LOCK = threading.Lock()


def _elsewhere(x: torch.Tensor) -> bool:
    return x.is_meta or type(x) is not torch.Tensor


def _compare(
    comm: Communicator, function: str, digests: Mapping[str, int], remedy: str, options: Mapping[str, str] = NO_OPTIONS
) -> None:
    own = np.array([*digests.values()], np.int64)
    rows = np.stack([record.view(np.int64) for record in comm.allgather_bytes(own.view(np.uint8))])
    unlike = rows != rows[0]
    if unlike.any():
        at = int(unlike.any(0).argmax())
        ranks = ", ".join(str(rank) for rank in np.flatnonzero(unlike[:, at]))
        raise MismatchError(
            f"rank {comm.rank}: {function}: rank{'s' if ',' in ranks else ''} {ranks} and rank 0 differ in "
            f"{_options_in_words(comm, options) if [*digests][at] == 'options' else [*digests][at]}; {remedy}"
        )


def _options_in_words(comm: Communicator, options: Mapping[str, str]) -> str:
    """Return the options that differ, each with its values and ranks; collective."""
    text = json.dumps(dict(options)).encode()
    sizes = [int(x.view(np.int64)[0]) for x in comm.allgather_bytes(np.array([len(text)]).view(np.uint8))]
    texts = comm.allgather_bytes(np.frombuffer(text.ljust(max(sizes)), np.uint8))
    return f"options: {difference([json.loads(bytes(x)) for x in texts])}"


def _digest(x: Any) -> int:
    if not isinstance(x, torch.Tensor):
        return _hash(repr(x).encode()) if isinstance(x, PLAIN) else 0
    data = _bytes_of(x.detach().cpu()).numpy().tobytes()
    return _hash(f"{list(x.shape)} {x.dtype}".encode() + data)


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), signed=True)


def _sums_of_bits(weights: list[torch.Tensor], releases: bool) -> list[int]:
    """Of every weight the sum of its bits as integers of 8 bytes, which wraps; from a GPU all are read at once."""
    sums = {}
    for place, x in enumerate(weights):
        if not _elsewhere(x):
            sums[place] = _sum_of_bits(x)
            if releases:
                release_pages(x)
    found = [0] * len(weights)
    for device in {x.device for x in sums.values()}:
        here = {place: x for place, x in sums.items() if x.device == device}
        for place, value in zip(here, torch.stack([*here.values()]).tolist(), strict=True):
            found[place] = value
    return found


def _sum_of_bits(x: torch.Tensor) -> torch.Tensor:
    raw = _bytes_of(x)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = raw.numel() // 8 * 8
    return raw[:whole].view(torch.int64).sum() + raw[whole:].sum()


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    x = x.contiguous()
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)  # one item may have any stride
