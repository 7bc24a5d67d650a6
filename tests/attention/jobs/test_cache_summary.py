"""The summary of the ranks' caches is what they hold."""

from tests import interpreted  # noqa: F401, I001 before transformers, which imports triton

import torch

from attention.huggingface import shard_generation
from attention.jobs.cache_summary import MOST_LINES, RankCache, cache_lines, gather_caches
from tests.attention.huggingface.tiny_llama import build, generate
from topocomm import run_local


def test_tokens_of_all_ranks_are_those_of_the_sequence():
    model, length = build(), 70
    prompt = torch.arange(3, length - 2)[None]

    def work(comm):
        with shard_generation(model, comm) as cache:
            inputs = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}
            generate(model, inputs, max_new_tokens=6, past_key_values=cache)
            own = [layer.store.n_local for layer in cache.sharded_layers]
            return gather_caches(cache, comm), own, cache.used_bytes, cache.allocated_bytes

    results = run_local(work, ranks=3)
    caches = results[0][0]
    assert all(result[0] == caches for result in results)
    assert sum(held.tokens for held in caches) == length
    for held, (_, own, used, allocated) in zip(caches, results, strict=True):
        assert set(own) == {held.tokens}
        assert (held.used_bytes, held.allocated_bytes) == (used, allocated)
    assert [held.runs for held in caches] == [2, 3, 1]  # of the prompt a share from either end or the middle


def test_ranks_that_hold_the_same_are_one_line():
    full, last = RankCache(32, 2, 1000, 2000), RankCache(16, 1, 500, 2000)
    assert cache_lines([full, full, last]) == [
        "cache of each of ranks 0-1: 32 tokens in 2 runs, 1,000 of 2,000 bytes used",
        "cache of rank 2: 16 tokens in 1 run, 500 of 2,000 bytes used",
    ]
    lines = cache_lines([full, last] * 20)
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "and 32 more ranks or runs of ranks"
    largest = RankCache(10**6, 62_500, 3 * 10**10, 5 * 10**10)
    assert len(cache_lines([largest])[0]) <= 110
