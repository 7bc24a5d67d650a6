"""Decoding with keys and values that lie on several ranks and grow by a token a step, without any model library.

A layer of attention feeds itself: what it returns for a token is the next one. A rank keeps the keys and values of some
positions, in blocks of 16, and attends to those; one planned reduction a step merges the parts, and nothing else is
sent. Beside it one process that holds everything makes the same tokens.

python docs/examples/decode.py runs three ranks on threads; under mpirun, srun or torchrun the ranks are the job's.
"""

import torch

import topocomm
from attention import ShardedKVCache, ShardMap, Spec, reference_attention, tree_decode

PROMPT, STEPS, HEADS, KV_HEADS, DIM = 100, 60, 8, 2, 32
torch.set_num_threads(1)  # ranks share the cores
random = torch.Generator().manual_seed(0)  # the same layer and prompt on every rank
to_q, to_k, to_v = (torch.randn(HEADS * DIM, n * DIM, generator=random) / 16 for n in (HEADS, KV_HEADS, KV_HEADS))
prompt = torch.randn(PROMPT, HEADS * DIM, generator=random)


def heads(x, weights):
    """[1, heads, tokens, DIM] of tokens [tokens, HEADS * DIM]."""
    return (x @ weights).unflatten(1, (-1, DIM)).transpose(0, 1)[None]


def tokens(attend):
    """The prompt and what follows; `attend(q, k, v)` is given a query, and the new keys and values."""
    found, new = [prompt], prompt
    for _ in range(STEPS):
        out = attend(heads(new[-1:], to_q), heads(new, to_k), heads(new, to_v))
        new = torch.tanh(out[0, :, 0].flatten())[None] * 4
        found.append(new)
    return torch.cat(found)


def sharded(comm):
    """The tokens, and how many of them this rank keeps."""
    cache = ShardedKVCache(ShardMap(comm.size, block_size=16), comm.rank)

    def attend(q, k, v):
        cache.append(k, v)  # keeps what this rank owns
        return tree_decode(
            q,
            cache.k,
            cache.v,
            comm,
            spec=Spec(causal=True),
            q_positions=torch.tensor([cache.length - 1]),
            kv_positions=cache.positions,
        )

    return tokens(attend), cache.n_local


def whole():
    """The same with all keys and values in one place."""
    keys, values = [], []

    def attend(q, k, v):
        keys.append(k)
        values.append(v)
        return torch.as_tensor(reference_attention(q, torch.cat(keys, 2), torch.cat(values, 2)).out).float()

    return tokens(attend)


def main():
    with topocomm.init() as job:
        parts = topocomm.run_local(sharded, ranks=3) if job.size == 1 else [sharded(job)]
        difference = (parts[0][0] - whole()).abs().max().item()
        assert difference < 1e-4, difference
        for rank, (_, kept) in enumerate(parts, job.rank):
            print(f"rank {rank}: keeps {kept} of {PROMPT + STEPS - 1} tokens", flush=True)
        if job.rank == 0:
            print(f"{STEPS} tokens decoded as by one process, up to {difference:.0e}")


if __name__ == "__main__":
    main()
