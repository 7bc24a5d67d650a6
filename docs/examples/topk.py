"""The best five of a million scores that lie on several ranks, with the number of each: one reduction of 80 bytes.

python docs/examples/topk.py runs four ranks on threads; under mpirun, srun or torchrun the ranks are the job's.
"""

import numpy as np

import topocomm

ITEMS, K = 1_000_000, 5
scores = np.random.default_rng(0).standard_normal(ITEMS).astype(np.float32)


def best(comm):
    """This rank scores its own part; a rank with fewer than K items, or none, is fine too."""
    mine = np.array_split(np.arange(ITEMS), comm.size)[comm.rank]
    return comm.allreduce(topocomm.topk_value(scores[mine], K, payload=mine), topocomm.TOPK(K))


def main():
    with topocomm.init() as job:
        result, *others = topocomm.run_local(best, ranks=4) if job.size == 1 else [best(job)]
        assert all(np.array_equal(result["payload"], other["payload"]) for other in others)
        assert np.array_equal(result["payload"], np.argsort(-scores, kind="stable")[:K])
        if job.rank == 0:
            for place, (number, score) in enumerate(zip(result["payload"], result["values"], strict=True), 1):
                print(f"{place}. item {number}: {score:.3f}")


if __name__ == "__main__":
    main()
