"""Sampled tokens: every rank emits what rank 0 draws."""

import threading
from pathlib import Path

import pytest
import torch

from attention.huggingface.generation import enable, shard_generation
from tests.attention.huggingface.tiny_llama import generate, small
from tests.mpi import mpirun
from topocomm import run_local


@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(8, marks=pytest.mark.long)])
def test_seeded_sampling(llama, prompt, ranks):
    options = {"do_sample": True, "temperature": 1.5, "top_k": 60}
    torch.manual_seed(5)
    expected = generate(llama, prompt, **options)
    torch.manual_seed(6)
    assert not torch.equal(generate(llama, prompt, **options).sequences, expected.sequences)
    torch.manual_seed(5)

    def work(comm):
        with shard_generation(llama, comm, shards=small(ranks)) as cache:
            return generate(llama, prompt, past_key_values=cache, **options).sequences

    assert all(torch.equal(tokens, expected.sequences) for tokens in run_local(work, ranks=ranks))


@pytest.mark.long
def test_ranks_of_mpirun_take_the_choices_of_rank_0():
    """Each rank seeds its generator otherwise; all emit what rank 0 would draw alone."""
    done = mpirun(3, [Path(__file__).with_name("sampling_job.py")])
    assert (done.returncode, done.stdout) == (0, "same tokens on all ranks and alone\n"), done.stderr


def test_what_a_forward_pass_computes_is_each_ranks_own(llama, prompt):
    """A mode of torch inside of the pass would cost a tenth of a step, and give routers of experts rank 0's choices."""
    seen = []

    def look(*_):
        rank = int(threading.current_thread().name.removeprefix("rank"))
        seen.append((rank, int(torch.argmax((torch.arange(4) == rank).int()))))

    def work(comm):
        with enable(llama, comm):
            tokens = generate(llama, prompt, max_new_tokens=3).sequences
            wrong = llama.lm_head.register_forward_pre_hook(lambda *_: 1 // 0)
            comm.barrier()
            with pytest.raises(ZeroDivisionError):
                generate(llama, prompt, max_new_tokens=3)
            comm.barrier()
            wrong.remove()
            return tokens, torch._C._is_torch_function_enabled()

    hook = llama.model.layers[1].register_forward_pre_hook(look)
    found = run_local(work, ranks=2)
    hook.remove()
    assert len(seen) >= 6 and all(own == chosen for own, chosen in seen)
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] and found[1][1]
