"""Attention over keys and values that are sharded over ranks, on the reductions of topocomm.

Importing this package needs NumPy alone; what computes attention imports torch at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attention.local.conventions import CONVENTIONS, Convention
from attention.merge.logsumexp import LOGSUMEXP
from attention.partial import Partial, add_sinks
from attention.spec import Spec

if TYPE_CHECKING:
    from attention.cache.kv_cache import ShardedKVCache
    from attention.cache.shards import ShardMap
    from attention.decode.prepared import DecodeOptions, PreparedDecode, prepare_decode
    from attention.decode.three_allreduce import three_allreduce_decode
    from attention.decode.tree_decode import tree_decode
    from attention.energy import attention_energy, attention_from_energy, value_covariance
    from attention.local.dispatch import local_attention
    from attention.local.normalise import as_partial
    from attention.merge.merge_states import merge_states
    from attention.reference import reference_attention
    from attention.ring.ring_decode import ring_decode
    from attention.ring.ring_layout import sequence_slices
    from attention.ring.ring_prefill import ring_attention
    from attention.ulysses.ulysses_attention import ulysses_attention

__all__ = [
    "CONVENTIONS",
    "LOGSUMEXP",
    "Convention",
    "DecodeOptions",
    "Partial",
    "PreparedDecode",
    "ShardMap",
    "ShardedKVCache",
    "Spec",
    "add_sinks",
    "as_partial",
    "attention_energy",
    "attention_from_energy",
    "local_attention",
    "merge_states",
    "prepare_decode",
    "reference_attention",
    "ring_attention",
    "ring_decode",
    "sequence_slices",
    "three_allreduce_decode",
    "tree_decode",
    "ulysses_attention",
    "value_covariance",
]

_MODULES = {
    "DecodeOptions": "attention.decode.prepared",
    "PreparedDecode": "attention.decode.prepared",
    "ShardMap": "attention.cache.shards",
    "ShardedKVCache": "attention.cache.kv_cache",
    "as_partial": "attention.local.normalise",
    "attention_energy": "attention.energy",
    "attention_from_energy": "attention.energy",
    "value_covariance": "attention.energy",
    "local_attention": "attention.local.dispatch",
    "merge_states": "attention.merge.merge_states",
    "prepare_decode": "attention.decode.prepared",
    "reference_attention": "attention.reference",
    "ring_attention": "attention.ring.ring_prefill",
    "ring_decode": "attention.ring.ring_decode",
    "sequence_slices": "attention.ring.ring_layout",
    "three_allreduce_decode": "attention.decode.three_allreduce",
    "tree_decode": "attention.decode.tree_decode",
    "ulysses_attention": "attention.ulysses.ulysses_attention",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'attention' has no attribute {name!r}")
    try:
        value = getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from topocomm import MissingExtraError

        raise MissingExtraError(f"attention.{name}", "torch", "attention") from error
    globals()[name] = value
    return value
