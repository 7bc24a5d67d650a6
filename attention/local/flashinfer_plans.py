"""Plans of FlashInfer's wrappers for batches, kept until the lengths or the shapes of a call change.

A plan is computed on the host from lengths that the host knows and is copied to the device: nothing is read back. The
layers of a model share the plan of a step, since their calls differ in the tensors alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import local
from typing import Any, NamedTuple

import torch

from attention.gpu.placement import capturing
from topocomm import OperatorError

WORKSPACE_BYTES = 128 << 20
"""What FlashInfer's documentation recommends for partial results of split keys."""
KEPT = 4
"""Plans kept per stream and kind of wrapper; each holds 8 MiB on the device and 8 MiB of pinned memory."""


class Plan(NamedTuple):
    """A planned wrapper, and the event after the copy of its plan to the device; None: there is no device."""

    wrapper: Any
    copied: Any


@dataclass
class Pool:
    """The plans of one kind of wrapper on one stream of one thread, oldest use first; they share the workspace.

    Kernels of one stream run one after the other, so that they can. Plans are not shared by threads, which would plan
    a wrapper anew between another's plan and its run.
    """

    workspace: torch.Tensor
    plans: dict[Hashable, Plan] = field(default_factory=dict)


class _Kept(local):
    def __init__(self) -> None:
        self.pools: dict[tuple[torch.device, str, int], Pool] = {}
        self.graphs: dict[tuple[torch.device, str, int], dict[Hashable, Plan]] = {}
        """By the stream that captures: the plans its graphs run."""
        self.retired: list[Pool] = []
        """Pools that graphs took, with their workspace: nobody tells when a graph is gone."""


_kept = _Kept()


def planned(
    kind: str,
    device: torch.device,
    key: Hashable,
    make: Callable[[torch.Tensor], Any],
    plan: Callable[[Any], None],
) -> Any:
    """Return a wrapper that holds the plan for a key; it is made and planned if none does.

    A graph that is captured takes the plans of the call that ran before it, with their workspace, for good: later
    calls plan others, so that what the graph replays stays as it was captured.

    Args:
        kind: Of wrapper.
        device: The current one.
        key: All that a plan depends on.
        make: Makes a wrapper around a workspace, uint8 [`WORKSPACE_BYTES`].
        plan: Plans a wrapper, from host memory.

    Raises:
        OperatorError: A graph is captured, and the same call did not run before.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    where = device, kind, stream
    if capturing(device):
        return _captured(where, key).wrapper
    pool = _kept.pools.get(where)
    if pool is None:
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        pool = _kept.pools[where] = Pool(workspace)
    found = pool.plans.pop(key, None)
    if found is None:
        found = _planned(_free_wrapper(pool) or make(pool.workspace), plan, device)
    pool.plans[key] = found
    return found.wrapper


def _free_wrapper(pool: Pool) -> Any:
    """The wrapper used longest ago, where as many as are kept exist; else None.

    Planning writes pinned memory at once, from which the plan before may not have been copied yet.
    """
    if len(pool.plans) < KEPT:
        return None
    oldest = pool.plans.pop(next(iter(pool.plans)))
    if oldest.copied is not None:
        oldest.copied.synchronize()
    return oldest.wrapper


def _planned(wrapper: Any, plan: Callable[[Any], None], device: torch.device) -> Plan:
    plan(wrapper)
    if device.type != "cuda":
        return Plan(wrapper, None)
    return Plan(wrapper, torch.cuda.current_stream(device).record_event())


def _captured(where: tuple[torch.device, str, int], key: Hashable) -> Plan:
    """The plan for a key that a graph may keep."""
    for other, pool in list(_kept.pools.items()):
        if other[:2] == where[:2] and key in pool.plans:
            _kept.retired.append(_kept.pools.pop(other))
            _kept.graphs[where] = _kept.graphs.get(where, {}) | pool.plans
            break
    found = _kept.graphs.get(where, {}).get(key)
    if found is None:
        raise OperatorError(
            "local_attention: FlashInfer plans this call on the host, which cannot be captured in a CUDA graph; run "
            'the same call once, in this thread, before the capture, or pass exact="float32" for a kernel of ours'
        )
    return found
