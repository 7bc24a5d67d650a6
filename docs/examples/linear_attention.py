"""Gated linear attention over a prompt that lies on four ranks, beside one process; then decoding on from its state.

python docs/examples/linear_attention.py runs four ranks on threads; under mpirun, srun or torchrun the ranks are the
job's. gated/attention.py has the function, gated/state.py the operator of its scan.
"""

import numpy as np
import torch
from gated.attention import linear_attention

import topocomm

torch.set_num_threads(1)  # ranks share the cores
TOKENS, PROMPT = 1000, 990
rng = np.random.default_rng(0)  # the same data everywhere, of which each rank keeps its part
q, k, v = (rng.standard_normal((1, 4, TOKENS, d), dtype=np.float32) for d in (32, 32, 64))
log_gates = -rng.exponential(0.02, k.shape).astype(np.float32)  # a gate for every key dimension, as in GLA


def tokens(first, last):
    return [x[:, :, first:last] for x in (q, k, v, log_gates)]


def prefill(comm):
    """The outputs of this rank's part of the prompt, and the state after all of it."""
    first, last = (PROMPT * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    return linear_attention(*tokens(first, last), comm, return_state=True)


def main():
    with topocomm.init() as job:
        if job.size == 1:
            found = topocomm.run_local(prefill, ranks=4)
            parts, state = [out for out, _ in found], found[0][1]
        else:
            out, state = prefill(job)
            parts = [np.moveaxis(job.allgather(np.moveaxis(out, 2, 0)), 0, 2)]  # joined along the tokens
        for token in range(PROMPT, TOKENS):
            out, state = linear_attention(*tokens(token, token + 1), initial_state=state, return_state=True)
            parts.append(out)
        whole = linear_attention(*tokens(0, TOKENS))
        difference = np.abs(np.concatenate(parts, 2) - whole).max() / np.abs(whole).max()
        assert difference < 1e-5
        if job.rank == 0:
            print(f"{PROMPT} tokens on {job.size if job.size > 1 else 4} ranks, {TOKENS - PROMPT} decoded")
            print(f"as on one process, up to {difference:.0e} of the largest output")


if __name__ == "__main__":
    main()
