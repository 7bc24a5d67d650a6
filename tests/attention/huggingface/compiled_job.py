"""Compiled calls under mpirun: collectives, attention and a model; rank 0 says whether all agree with plain ones."""

import sys

import numpy as np
import torch
import transformers
from mpi4py import MPI

from attention import tree_decode
from attention.cache.shards import ShardMap
from attention.huggingface import enable
from topocomm import SUM, Communicator


def main():
    comm = Communicator.from_mpi(MPI.COMM_WORLD)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        intermediate_size=48,
        vocab_size=199,
        initializer_range=0.25,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 199, (2, 12))
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    alone = model.generate(ids, **options)

    def call(q, k):
        return comm.allreduce(tree_decode(q * 2, k + comm.rank, k, comm) + 1, SUM) * 2

    q, k = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 6, 8)
    backend = sys.argv[1]
    compiled = torch.compile(call, backend=backend)(q, k)
    same = torch.equal(compiled, call(q, k))
    model.forward = torch.compile(model.forward, backend=backend)
    with enable(model, comm, shards=ShardMap(comm.size, block_size=1)):
        same &= torch.equal(model.generate(ids, **options), alone)
    bits = comm.allgather_bytes(compiled.numpy().view(np.uint8).reshape(-1))
    same &= all((part == bits[0]).all() for part in bits)
    agreed = int(comm.allreduce(torch.tensor([int(same)]), SUM))
    if comm.rank == 0:
        print("same bits on all ranks, tokens as alone" if agreed == comm.size else "different results")
    comm.close()


if __name__ == "__main__":
    main()
