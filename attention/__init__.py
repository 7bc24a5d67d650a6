"""Attention over keys and values that are sharded over ranks, on the reductions of topocomm.

Importing this package needs NumPy alone; what computes attention imports torch at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attention.merge import LOGSUMEXP
from attention.partial import Partial
from attention.spec import Spec

if TYPE_CHECKING:
    from attention.allreduce import three_allreduce_decode
    from attention.cache import ShardedKVCache
    from attention.local.cpu import local_attention
    from attention.reference import reference_attention
    from attention.ring import ring_decode
    from attention.tree import tree_decode

__all__ = [
    "LOGSUMEXP",
    "Partial",
    "ShardedKVCache",
    "Spec",
    "local_attention",
    "reference_attention",
    "ring_decode",
    "three_allreduce_decode",
    "tree_decode",
]

_MODULES = {
    "ShardedKVCache": "attention.cache",
    "local_attention": "attention.local.cpu",
    "reference_attention": "attention.reference",
    "ring_decode": "attention.ring",
    "three_allreduce_decode": "attention.allreduce",
    "tree_decode": "attention.tree",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'attention' has no attribute {name!r}")
    try:
        found = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from topocomm import MissingExtraError

        raise MissingExtraError(f"attention.{name}", "torch", "attention") from error
    globals()[name] = found
    return found
