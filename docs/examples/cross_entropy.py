"""The loss of a language model whose vocabulary lies on several ranks: softmax statistics, merged as one SUM.

A rank has the logits of its words only. Of every token it knows the statistics (highest logit, sum of e^(logit -
highest)); merged over the ranks, by one SUM of the library's, they give the loss.

mpirun -n 4 python docs/examples/cross_entropy.py, or without mpirun for one rank.
"""

import numpy as np
from mpi4py import MPI

import topocomm
from topocomm import Field, Operator
from topocomm.extend import SumLowering, all_exact, weigh

TOKENS, WIDTH, WORDS = 6, 32, 5000


def merge(a, b):
    """Statistics over the words of both."""
    highest = np.maximum(a["highest"], b["highest"])
    base = np.where(highest == -np.inf, 0, highest)
    return {"highest": highest, "total": sum(x["total"] * np.exp(x["highest"] - base) for x in (a, b))}


def shares(value, reference, ranks, sums):
    """What a rank adds: the sum of e^(logit - reference) over its words, and counts that say how precise it is."""
    with np.errstate(divide="ignore"):
        weights = weigh(value["highest"] + np.log(value["total"]), reference, ranks, dtype="float64")
    sums["weight"][...], sums["lost"][...], sums["present"][...] = weights[:3]


def statistics(sums, reference, result):
    """What the sums give. Any pair with this total e^highest is the same statistic; this one has total 1."""
    total = sums["weight"]
    with np.errstate(divide="ignore"):
        result["highest"][...] = reference + np.log(total)
    result["total"][...] = total > 0


softmax = Operator(
    "softmax statistics",
    (Field("highest", dtype=np.float64), Field("total", dtype=np.float64)),
    merge,
    {"highest": -np.inf, "total": 0.0},
    commutative=True,
    lower_to_sum=lambda layout: SumLowering(
        "softmax/1",
        tuple(Field(name, dtype=np.float64) for name in ("weight", "lost", "present")),
        shares,
        lambda sums: all_exact(sums["lost"], sums["present"]),
        statistics,
    ),
)


def main():
    with topocomm.Communicator.from_mpi(MPI.COMM_WORLD) as comm:
        rng = np.random.default_rng(0)  # everything on every rank, for comparison
        hidden, words = rng.normal(0, 1, (TOKENS, WIDTH)), rng.normal(0, 1, (WORDS, WIDTH))
        wanted = rng.integers(0, WORDS, TOKENS)
        first, end = comm.rank * WORDS // comm.size, (comm.rank + 1) * WORDS // comm.size

        logits = hidden @ words[first:end].T
        highest = logits.max(axis=1)
        value = {"highest": highest, "total": np.exp(logits - highest[:, None]).sum(axis=1)}
        longest = comm.allreduce(np.linalg.norm(words[first:end], axis=1).max(), topocomm.MAX)  # once: words stay
        bound = np.linalg.norm(hidden, axis=1) * longest  # no logit is greater, and all ranks know it
        call = comm.prepare_sum(like=value, operator=softmax)
        found = call(value, reference=bound)
        lse = found["highest"] + np.log(found["total"])

        owned = (first <= wanted) & (wanted < end)  # the rank of a token's next word knows that word's logit
        loss = comm.allreduce((lse[owned] - logits[owned, wanted[owned] - first]).sum(), topocomm.SUM) / TOKENS

        whole = hidden @ words.T
        exact = np.log(np.exp(whole).sum(axis=1))
        np.testing.assert_allclose(lse, exact, rtol=1e-12)
        assert not call.repeated
        np.testing.assert_allclose(loss, (exact - whole[range(TOKENS), wanted]).mean(), rtol=1e-12)
        call(value, reference=bound + 1000)  # too far: all ranks see it, and merge by a plan
        assert call.repeated == 1
        if comm.rank == 0:
            print(f"loss {loss:.4f} over {TOKENS} tokens and {WORDS} words")


if __name__ == "__main__":
    main()
