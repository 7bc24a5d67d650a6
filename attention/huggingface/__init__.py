"""Generation with Hugging Face models whose key-value cache is sharded over ranks."""

from attention.huggingface.generation import enable, shard_generation

__all__ = ["enable", "shard_generation"]
