"""The state of a sharded model: of one context."""

import pytest

from attention.huggingface.active import ACTIVE, NotShardedError
from attention.huggingface.generation import shard_generation
from tests.attention.huggingface.tiny_llama import generate
from topocomm import run_local


def test_outside_the_context(llama, prompt):
    def work(comm):
        with shard_generation(llama, comm) as cache:
            if comm.rank == 0:
                outside(cache)

    def outside(cache):
        token = ACTIVE.set(None)
        try:
            with pytest.raises(NotShardedError, match="call it inside `with shard_generation"):
                generate(llama, prompt, past_key_values=cache)
        finally:
            ACTIVE.reset(token)

    run_local(work, ranks=1)
