"""Tree attention: the partial of a shard, then one planned reduction."""
