"""The state of a sharded model on one rank, as the hooks of transformers and torch find it: in a context variable."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import RLock
from typing import Any
from weakref import WeakSet

import torch

from attention.decode.prepared import PreparedDecode
from attention.huggingface.sharded_cache import ShardedCache
from topocomm import Communicator, MissingExtraError, TopocommError

try:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache
except ImportError as error:
    raise MissingExtraError("attention.huggingface.generation", "transformers", "demo") from error


class NotShardedError(TopocommError, RuntimeError):
    """A sharded model was called outside of its context, or in a thread that is not its rank's."""


@dataclass(eq=False)
class Active:
    """The state of the hooks on one rank.

    Attributes:
        decode: One of `METHODS`.
        model: The model whose `generate` gets its cache by itself; None: it is passed one.
        caches: Those that the model's passes have filled.
        replaced: Caches of transformers that a sharded one took the place of.
        generating: Held by the thread whose `generate` runs.
        generates: Whether one runs.
        generated: Whether one has begun, whose cache plain passes leave in its place then.
        steps_of: The communicator of `steps`.
        steps: Prepared steps of one query, by their kind.
        passes: Of the running forward passes, what keeps torch's modes out of them: no token is chosen there, and to
            ask at each of some thousand operations would take a tenth of a step.
    """

    cache: ShardedCache
    decode: Callable[..., torch.Tensor]
    order: str = "any"
    model: PreTrainedModel | None = None
    caches: WeakSet[ShardedCache] = field(default_factory=WeakSet)
    replaced: WeakSet[Cache] = field(default_factory=WeakSet)
    generating: Any = field(default_factory=RLock)
    generates: bool = False
    generated: bool = False
    steps_of: Communicator | None = None
    steps: dict[Hashable, PreparedDecode] = field(default_factory=dict)
    passes: list[Any] = field(default_factory=list)


ACTIVE: ContextVar[Active | None] = ContextVar("topocomm_sharded_generation", default=None)


def active() -> Active:
    """Return the state of this thread.

    Raises:
        NotShardedError: The model is not sharded in this thread.
    """
    state = ACTIVE.get()
    if state is None:
        raise NotShardedError(
            "this model is sharded over ranks; call it inside `with shard_generation(model, comm)`, "
            "or where enable(model, comm) was called"
        )
    return state
