"""Every collective of torch.distributed on our backend and on gloo, side by side, with results that must be equal.

torchrun --nproc-per-node N collectives.py [CASES]    random calls after the listed ones, those of few shapes up to 20
"""

import random
import sys
import warnings

import torch
import torch.distributed as dist

import topocomm.torch  # noqa: F401 - registers the backend

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
Op = dist.ReduceOp
FEW = 20
SHAPES = [(1,), (7,), (3, 5), (), (0,), (1000,), (70_001,)]


def values(shape, dtype, rank, seed=0):
    """Small whole numbers: sums and products of all ranks are exact in every dtype, and stay within a byte."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(1, 3, shape, generator=generator)
    return numbers > 1 if dtype == torch.bool else numbers.to(dtype)


class Side:
    """One group, and the calls on it; each returns what this rank holds afterwards."""

    def __init__(self, group):
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def all_reduce(self, x, op):
        dist.all_reduce(x, op, group=self.group)
        return [x]

    def all_reduce_coalesced(self, x, op):
        tensors = [x, x * 2]
        dist.all_reduce_coalesced(tensors, op, group=self.group)
        return tensors

    def reduce(self, x, op, root):
        dist.reduce(x, group_dst=root, op=op, group=self.group)
        return [x] if self.rank == root else []  # elsewhere gloo leaves what it has computed so far

    def broadcast(self, x, root):
        dist.broadcast(x, group_src=root, group=self.group)
        return [x]

    def all_gather(self, x):
        out = [torch.zeros_like(x) for _ in range(self.size)]
        dist.all_gather(out, x, group=self.group)
        return out

    def all_gather_into_tensor(self, x):
        out = x.new_zeros(self.size * x.numel())
        dist.all_gather_into_tensor(out, x.reshape(-1), group=self.group)
        return [out]

    def gather(self, x, root):
        out = [torch.zeros_like(x) for _ in range(self.size)] if self.rank == root else None
        dist.gather(x, out, group_dst=root, group=self.group)
        return out or []

    def scatter(self, x, root):
        parts = [x + rank for rank in range(self.size)] if self.rank == root else None
        out = torch.zeros_like(x)
        dist.scatter(out, parts, group_src=root, group=self.group)
        return [out]

    def reduce_scatter(self, x, op):
        out = torch.zeros_like(x)
        dist.reduce_scatter(out, [x * (rank + 1) for rank in range(self.size)], op, group=self.group)
        return [out]

    def reduce_scatter_tensor(self, x, op):
        out = x.new_zeros(x.numel())
        given = torch.cat([x.reshape(-1) + rank for rank in range(self.size)])
        dist.reduce_scatter_tensor(out, given, op, group=self.group)
        return [out]

    def all_to_all_single(self, x):
        given = torch.stack([x + rank for rank in range(self.size)])
        out = torch.zeros_like(given)
        dist.all_to_all_single(out, given, group=self.group)
        return [out]

    def all_to_all_uneven(self, x):
        sent = [(self.rank + rank) % 3 for rank in range(self.size)]  # as many as come
        given = x.reshape(-1)[:1].repeat(sum(sent))
        out = torch.zeros_like(given)
        dist.all_to_all_single(out, given, sent, sent, group=self.group)
        return [out]

    def all_to_all(self, x):
        given = [x + rank for rank in range(self.size)]
        out = [torch.zeros_like(part) for part in given]
        dist.all_to_all(out, given, group=self.group)
        return out

    def objects(self, x):
        out = [None] * self.size
        dist.all_gather_object(out, {"rank": self.rank, "items": x.numel()}, group=self.group)
        shared = [x.shape, "words"] if self.rank == 0 else [None, None]
        dist.broadcast_object_list(shared, group_src=0, group=self.group)
        return [torch.tensor([entry["rank"], entry["items"]]) for entry in out] + [torch.tensor(shared[0])]

    def exchange(self, x):
        """Messages to both neighbours, begun together, with tags; and one from whoever sends it."""
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        got = [torch.zeros_like(x), torch.zeros_like(x)]
        operations = [
            dist.P2POp(dist.isend, x, group_peer=after, group=self.group, tag=1),
            dist.P2POp(dist.isend, x + 1, group_peer=before, group=self.group, tag=2),
            dist.P2POp(dist.irecv, got[0], group_peer=before, group=self.group, tag=1),
            dist.P2POp(dist.irecv, got[1], group_peer=after, group=self.group, tag=2),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        last = self.size - 1
        if self.rank == last:
            dist.send(x, group_dst=0, group=self.group, tag=3)
        if self.rank == 0:
            found = torch.zeros_like(x)
            source = dist.recv(found, group=self.group, tag=3)
            assert source == dist.get_global_rank(self.group, last), source
            got.append(found)
        return got


MOVING = ["all_gather", "all_gather_into_tensor", "all_to_all_single"]
ROOTED = ["broadcast", "gather", "scatter"]
ODD = ["all_to_all_uneven", "all_to_all", "objects"]


def ops_of(dtype):
    if dtype == torch.bool:
        return [Op.BAND, Op.BOR, Op.BXOR]
    bits = [] if dtype.is_floating_point else [Op.BAND, Op.BOR, Op.BXOR]
    return [Op.SUM, Op.PRODUCT, Op.MIN, Op.MAX, *bits]


def same(name, ours, theirs):
    assert len(ours) == len(theirs), name
    for left, right in zip(ours, theirs, strict=True):
        assert left.dtype == right.dtype and torch.equal(left, right), (name, left, right)


def both(sides, name, x, *args):
    """One call on both groups."""
    same((name, x.dtype, tuple(x.shape), args), *(getattr(side, name)(x.clone(), *args) for side in sides))


def listed(sides, cases):
    """Every call, dtype and operator; gloo is the measure where it has them."""
    rank, size = sides[0].rank, sides[0].size
    for shape in SHAPES if cases > FEW else SHAPES[:3]:
        for dtype in [torch.float32, torch.int64] if shape not in SHAPES[1:2] else [*INTEGERS, *FLOATS]:
            x = values(shape, dtype, rank)
            for op in ops_of(dtype):
                if not (op == Op.SUM and dtype == torch.int16) and dtype != torch.int16:  # gloo has no int16
                    both(sides, "all_reduce", x, op)
                    both(sides, "reduce", x, op, size - 1)
            if dtype == torch.int16:
                continue
            for name in MOVING:
                both(sides, name, x)
            for name in ROOTED:
                both(sides, name, x, size // 2)
            both(sides, "reduce_scatter", x, Op.SUM)
            both(sides, "reduce_scatter_tensor", x, Op.MAX)
            both(sides, "all_reduce_coalesced", x, Op.SUM)
            if x.numel():
                for name in ODD:
                    both(sides, name, x)
            if size > 1 and x.numel():
                both(sides, "exchange", x)


def drawn(sides, cases):
    """Random calls, the same on all ranks."""
    chance = random.Random(7)
    for case in range(cases):
        shape = chance.choice([(1,), (5,), (2, 3), (17,), (1024,), (5, 1, 7)])
        dtype = chance.choice([torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8, torch.bfloat16])
        x = values(shape, dtype, sides[0].rank, case)
        name = chance.choice(
            [*MOVING, *ROOTED, *ODD, "all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor"]
        )
        root, op = chance.randrange(sides[0].size), chance.choice([Op.SUM, Op.MAX, Op.MIN])
        args = {"reduce": (op, root)}.get(name) or ((root,) if name in ROOTED else (op,) if "reduce" in name else ())
        both(sides, name, x, *args)


def main():
    warnings.simplefilter("ignore", FutureWarning)  # torch 2.13 renames its functions
    dist.init_process_group("topocomm")
    assert dist.get_backend() == "topocomm"
    gloo = dist.new_group(backend="gloo")
    sides = Side(dist.group.WORLD), Side(gloo)
    cases = int(sys.argv[1]) if sys.argv[1:] else 40
    listed(sides, cases)
    drawn(sides, cases)
    dist.barrier()
    dist.destroy_process_group()
    print(f"[{sides[0].rank}] ok\n", end="", flush=True)


if __name__ == "__main__":
    main()
