"""Generation with Hugging Face models whose key-value cache is sharded over ranks, and their weights if wanted."""

from attention.huggingface.generation import enable, shard_generation
from attention.huggingface.weights.load_sharded import load_sharded

__all__ = ["enable", "load_sharded", "shard_generation"]
