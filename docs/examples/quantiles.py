"""Quantiles of weighted values that lie on several ranks, from sketches of 2 KiB: an operator that merges nearly alike.

A sketch is K points of equal weight. Two are merged by sorting the points of both and taking K of them, evenly by
weight, which moves the share of values up to any x by 1/2K at most (Agarwal et al., "Mergeable summaries", 2012). So
after LEVELS merges on top of each other every share is right within (LEVELS + 1) / 2K.

Other brackets give other points, each within the bound; `check_laws` calls associativity broken. Such an operator is
to be reduced with order="canonical": its brackets are one fixed tree over virtual shards of the data, so the levels are
known, and the points are the same on any number of ranks.

python docs/examples/quantiles.py runs three ranks on threads; under mpirun, srun or torchrun the ranks are the job's.
"""

import numpy as np

import topocomm
from topocomm import Field, Operator

K, SHARDS, VALUES = 256, 16, 200_000
LEVELS = SHARDS.bit_length() - 1  # of the tree over the virtual shards
BOUND = (LEVELS + 1) / (2 * K)


def sketch(values, weights):
    """K of the values, evenly by weight, along the last axis; of values without weight the points stand for nothing."""
    order = np.argsort(values, axis=-1, kind="stable")
    values, up_to = (np.take_along_axis(x, order, -1) for x in (values, weights))
    up_to = np.cumsum(up_to, axis=-1)
    wanted = (np.arange(K) + 0.5) / K * up_to[..., -1:]
    chosen = (up_to[..., None, :] < wanted[..., None]).sum(axis=-1)
    return {"points": np.take_along_axis(values, chosen, -1), "weight": up_to[..., -1]}


def merge(a, b):
    points = np.concatenate([a["points"], b["points"]], axis=-1)
    weights = [np.broadcast_to(x["weight"][..., None] / K, x["points"].shape) for x in (a, b)]
    return {**sketch(points, np.concatenate(weights, axis=-1)), "weight": a["weight"] + b["weight"]}


def sample(rng, layout):
    """Values to try the laws on."""
    values = rng.normal(size=(*layout.leading, 3 * K))
    return sketch(values, rng.integers(1, 9, values.shape).astype(float))


fields = (Field("points", ("*rows", "points"), np.float64), Field("weight", dtype=np.float64))
quantiles = Operator("quantiles", fields, merge, {"points": 0.0, "weight": 0.0}, sample=sample)
rng = np.random.default_rng(0)  # the same data everywhere, of which each rank keeps its part
data, weights = rng.lognormal(size=VALUES), rng.exponential(size=VALUES)
data.sort()  # the hardest order: every shard has other values


def merged(comm):
    """The sketch of all shards; a rank owns some that follow each other."""
    first, last = (SHARDS * rank // comm.size for rank in (comm.rank, comm.rank + 1))
    parts = np.array_split(np.arange(VALUES), SHARDS)[first:last]
    own = [sketch(data[part], weights[part]) for part in parts]
    value = {f.name: np.array([each[f.name] for each in own]) for f in fields}
    return comm.allreduce(value, quantiles, order="canonical", shards=(first, last))


def main():
    report = topocomm.check_laws(quantiles, samples=32, dims={"points": K})
    assert report.broken == ("associativity",), report
    with topocomm.init() as job:
        found = topocomm.run_local(merged, ranks=3)[0] if job.size == 1 else merged(job)
        alone = topocomm.run_local(merged, ranks=1)[0]
        assert all(found[name].tobytes() == alone[name].tobytes() for name in found)
        share = np.cumsum(weights) / weights.sum()  # exact: of the values up to each
        error = np.abs(np.searchsorted(found["points"], data, side="right") / K - share).max()
        assert error <= BOUND
        if job.rank == 0:
            for q in (0.01, 0.5, 0.99):
                at = found["points"][int(q * K)]
                print(f"{q:.0%} of the weight is up to {at:.3f}; exactly: {data[share.searchsorted(q)]:.3f}")
            print(f"largest error of a share: {error:.4f}; the bound: {BOUND:.4f}")


if __name__ == "__main__":
    main()
