"""A rank is killed while a model generates; the others go on and bring the tokens of an undisturbed run.

mpirun --with-ft ulfm -n 3 python docs/examples/lost_rank.py [RANK PASS REPLICAS]
"""

import os
import signal
import sys
from itertools import count

import torch
import transformers
from mpi4py import MPI

from attention.cache.shards import ShardMap
from attention.huggingface import shard_generation
from topocomm import Communicator, RankFailedError

torch.set_num_threads(1)
torch.manual_seed(0)  # the same model and prompt on every rank
sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3}
config = transformers.LlamaConfig(
    **sizes, intermediate_size=128, vocab_size=199, initializer_range=0.25, eos_token_id=None
)
model = transformers.LlamaForCausalLM(config).eval()
inputs = {"input_ids": torch.randint(3, 199, (1, 100)), "attention_mask": torch.ones(1, 100, dtype=torch.int64)}
options = {"max_length": 140, "do_sample": False, "pad_token_id": 0}
undisturbed = model.generate(**inputs, **options)


def main():
    comm = Communicator.from_mpi(MPI.COMM_WORLD)
    victim, last_pass, replicas = (int(given) for given in sys.argv[1:] or (1, 20, 1))
    passes = count(1)

    def die(*_):
        if MPI.COMM_WORLD.rank == victim and next(passes) == last_pass:
            os.kill(os.getpid(), signal.SIGKILL)

    model.model.layers[1].register_forward_pre_hook(die)  # in the middle of a pass through the layers

    with shard_generation(model, comm, shards=ShardMap(comm.size, block_size=2), replicas=replicas) as cache:
        while True:
            try:
                if cache.comm is not comm:
                    loss = cache.recover(comm)
                    inputs.update(cache.inputs)  # the tokens so far
                    print(f"rank {comm.rank} of {comm.size}, {inputs['input_ids'].shape[1]} tokens: {loss}", flush=True)
                tokens = model.generate(**inputs, **options, past_key_values=cache)
                break
            except RankFailedError:
                comm = comm.shrink()

    same = torch.equal(tokens, undisturbed)
    print(f"rank {comm.rank}: {'the same tokens' if same else 'other tokens'} as an undisturbed run", flush=True)
    comm.close()


if __name__ == "__main__":
    main()
