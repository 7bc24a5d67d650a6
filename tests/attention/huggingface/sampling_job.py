"""Sampling under mpirun with another seed on every rank; rank 0 says whether all emit what it draws alone."""

import numpy as np
import torch
import transformers
from mpi4py import MPI

from attention.cache.shards import ShardMap
from attention.huggingface.generation import shard_generation
from topocomm import Communicator


def main():
    comm = Communicator.from_mpi(MPI.COMM_WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        intermediate_size=128,
        vocab_size=199,
        initializer_range=0.25,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 199, (2, 40))
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    options = {"max_new_tokens": 20, "do_sample": True, "temperature": 2.0, "pad_token_id": 0}

    torch.manual_seed(100 + comm.rank)
    with shard_generation(model, comm, shards=ShardMap(comm.size, block_size=1)) as cache:
        tokens = model.generate(input_ids=ids, attention_mask=mask, past_key_values=cache, **options)
    everywhere = comm.allgather_bytes(tokens.numpy().view(np.uint8).reshape(-1))
    if comm.rank == 0:
        torch.manual_seed(100)
        alone = model.generate(input_ids=ids, attention_mask=mask, **options)
        same = all((part == everywhere[0]).all() for part in everywhere) and torch.equal(alone, tokens)
        print("same tokens on all ranks and alone" if same else "different tokens")
    comm.close()


if __name__ == "__main__":
    main()
