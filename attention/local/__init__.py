"""Attention over the keys of one shard, per device."""
