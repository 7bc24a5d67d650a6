"""Attention over keys and values that are sharded over ranks, on the reductions of topocomm.

Importing this package needs NumPy alone; what computes attention imports torch at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attention.conventions import CONVENTIONS, Convention
from attention.linear_state import GATED_STATE
from attention.merge import LOGSUMEXP
from attention.partial import Partial, add_sinks
from attention.spec import Spec

if TYPE_CHECKING:
    from attention.allreduce import three_allreduce_decode
    from attention.cache import ShardedKVCache
    from attention.energy import attention_energy, attention_from_energy, value_covariance
    from attention.linear import linear_attention
    from attention.local.cpu import local_attention
    from attention.merging import merge_states
    from attention.normalise import as_partial
    from attention.reference import reference_attention
    from attention.ring import ring_decode
    from attention.ring_layout import sequence_slices
    from attention.ring_prefill import ring_attention
    from attention.shards import ShardMap
    from attention.tree import tree_decode

__all__ = [
    "CONVENTIONS",
    "GATED_STATE",
    "LOGSUMEXP",
    "Convention",
    "Partial",
    "ShardMap",
    "ShardedKVCache",
    "Spec",
    "add_sinks",
    "as_partial",
    "attention_energy",
    "attention_from_energy",
    "linear_attention",
    "local_attention",
    "merge_states",
    "reference_attention",
    "ring_attention",
    "ring_decode",
    "sequence_slices",
    "three_allreduce_decode",
    "tree_decode",
    "value_covariance",
]

_MODULES = {
    "ShardMap": "attention.shards",
    "ShardedKVCache": "attention.cache",
    "as_partial": "attention.normalise",
    "attention_energy": "attention.energy",
    "attention_from_energy": "attention.energy",
    "linear_attention": "attention.linear",
    "value_covariance": "attention.energy",
    "local_attention": "attention.local.cpu",
    "merge_states": "attention.merging",
    "reference_attention": "attention.reference",
    "ring_attention": "attention.ring_prefill",
    "ring_decode": "attention.ring",
    "sequence_slices": "attention.ring_layout",
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
