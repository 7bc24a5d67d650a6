"""Random machines, collectives and payloads: every plan is proved, bounded, saved, loaded, replayed and run on threads.

    python tools/soak/plans.py --seconds 1200 [--seed 1]

A plan must not beat its own bounds, must survive its file, and must give the exact fold: affine maps over integers,
which do not commute, compose in rank order; partials merge as the float64 formula says; in canonical order their bits
are those of the tree over all virtual shards, whoever owns them. All plans are replayed value by value; those of
allreduce and reduce also run on threads. Ends at the first failure with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import topocomm
from attention import LOGSUMEXP
from topocomm import Device, Field, Link, Operator, Plan, Topology
from topocomm.planning.collectives import COLLECTIVES, IN_PAIRS, IN_PARTS, ROOTED, Collective
from topocomm.planning.formats.plan_json import dumps
from topocomm.planning.planner import every_plan
from topocomm.planning.request import on_every_endpoint
from topocomm.planning.schedule.canonical_tree import canonical_split
from topocomm.planning.schedule.schedule import input_pieces
from topocomm.planning.schedule.transforms import unrolled

Value = dict[str, Any]
"""One array per field of the operator."""
MOST_RANKS = 24
LIMIT_GAP = 1 - 1e-9


def _compose(first: Any, second: Any) -> dict[str, Any]:
    return {"m": second["m"] * first["m"], "c": second["m"] * first["c"] + second["c"]}


AFFINE = Operator("affine", (Field("m", dtype=np.uint64), Field("c", dtype=np.uint64)), _compose, {"m": 1, "c": 0})
"""x -> m x + c modulo 2^64, the left operand applied first: exact, and does not commute."""


def random_machine(rng: np.random.Generator) -> Topology:
    """Hosts of GPUs on a switch or in pairs, some figures unknown, NICs on a common network."""
    hosts, gpus = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    devices = [Device("net", "switch", host="network")]
    links: list[Link] = []

    def both(a: str, b: str, kind: str) -> None:
        rate = None if rng.random() < 0.1 else float(rng.integers(1, 450))
        delay = None if rng.random() < 0.1 else float(rng.integers(1, 50)) / 10
        links.extend(Link(src, dst, kind, gb_per_s=rate, latency_us=delay) for src, dst in ((a, b), (b, a)))

    for host in (f"h{index}" for index in range(hosts)):
        devices += [Device(f"{host}/switch", "switch", host=host), Device(f"{host}/nic", "nic", host=host)]
        both(f"{host}/switch", f"{host}/nic", "pcie")
        both(f"{host}/nic", "net", "network")
        for gpu in range(gpus):
            devices.append(Device(f"{host}/gpu{gpu}", "gpu", host=host))
            both(f"{host}/gpu{gpu}", f"{host}/switch", "pcie")
            if gpu and rng.random() < 0.5:
                both(f"{host}/gpu{gpu}", f"{host}/gpu{gpu - 1}", "nvlink")
    return Topology(f"random {hosts} x {gpus}", "soak", tuple(devices), tuple(links))


def value_of(operator: Operator, rank: int, rows: int, seed: int) -> dict[str, Any]:
    """Draw a rank's value."""
    rng = np.random.default_rng([seed, rank])
    if operator is AFFINE:
        return {name: rng.integers(0, 2**63, rows, np.uint64) for name in ("m", "c")}
    lse = np.where(rng.random(rows) < 0.2, -np.inf, 4 * rng.standard_normal(rows)).astype(np.float32)
    return {"out": rng.standard_normal((rows, 3), dtype=np.float32), "lse": lse}


def check_result(operator: Operator, values: list[Value], got: Value) -> None:
    """Compare with the fold in rank order, for partials within rounding."""
    if operator is AFFINE:
        want = values[0]
        for value in values[1:]:
            want = _compose(want, value)
        assert all(np.array_equal(got[name], want[name]) for name in want), "the fold is not in rank order"
        return
    lse = np.stack([v["lse"] for v in values]).astype(np.float64)
    top = np.where(np.isneginf(lse.max(0)), 0, lse.max(0))
    weights = np.exp(lse - top)
    total = weights.sum(0)
    out = (
        np.einsum("pr,prd->rd", weights, np.stack([v["out"] for v in values])) / np.where(total == 0, 1, total)[:, None]
    )
    filled = total > 0
    if len(values) > 1:
        np.testing.assert_allclose(got["out"], out, atol=1e-5)
    np.testing.assert_allclose(got["lse"][filled], top[filled] + np.log(total[filled]), atol=1e-4)


def cut(value: Value, first: int, rows: int) -> Value:
    """Return some rows of a value."""
    return {name: array[first : first + rows] for name, array in value.items()}


def tree(operator: Operator, values: list[Value]) -> Value:
    """The canonical tree over the values of consecutive virtual shards."""
    if len(values) == 1:
        return values[0]
    middle = canonical_split(len(values))
    return dict(operator.combine(tree(operator, values[:middle]), tree(operator, values[middle:])))


def replay(plan: Plan, operator: Operator, values: list[Value]) -> dict[tuple[int, int], Value]:
    """(rank, chunk) -> result of a plan, transfer by transfer and fold by fold.

    Args:
        plan: What to do.
        operator: What folds.
        values: Of every rank the whole payload, of which an allgather takes the rank's part; in canonical order of
            every virtual shard.
    """
    schedule = unrolled(plan.schedule)
    held: dict[tuple[int, int, int], Value] = {}
    for rank, slot, index in schedule.inputs.tolist():
        own = tree(operator, values[slice(*schedule.nodes[index])]) if schedule.nodes else values[index]
        for chunk in [chunk for at, chunk in input_pieces(schedule, rank) if at == slot]:
            held[rank, slot, chunk] = cut(own, *schedule.chunks[chunk])
    moves, folds = schedule.transfer_list(), schedule.combine_list()
    for round_ in range(schedule.rounds):
        arriving = [(m, held[m.src, m.src_slot, m.chunk]) for m in moves if m.round == round_]
        held |= {(m.dst, m.dst_slot, m.chunk): value for m, value in arriving}
        for fold in (f for f in folds if f.round == round_):
            first, *others = (held[fold.rank, slot, fold.chunk] for slot in fold.operands)
            for other in others:
                first = dict(operator.combine(first, other))
            held[fold.rank, fold.out_slot, fold.chunk] = first
    return {(rank, chunk): held[rank, slot, chunk] for rank, slot, chunk in schedule.outputs.tolist()}


def check_replay(plan: Plan, operator: Operator, values: list[Value]) -> None:
    """Every result of a replayed plan against the fold of the contributions that it must hold."""
    chunks, collective = unrolled(plan.schedule).chunks, plan.collective
    owners = collective.owners(chunks) or (None,) * len(chunks)
    whole = tree(operator, values) if collective.shards else {}
    for (rank, chunk), got in replay(plan, operator, values).items():
        if collective.shards:
            want = cut(whole, *chunks[chunk])
            assert all(np.array_equal(got[name], want[name]) for name in want), f"{plan.algorithm}: other bits"
        else:
            wanted = collective.expected(rank, owners[chunk])
            check_result(operator, [cut(values[who], *chunks[chunk]) for who in wanted], got)


def random_request(rng: np.random.Generator, ranks: int) -> dict[str, Any]:
    """Collective, root, parts and shards."""
    name = str(rng.choice(COLLECTIVES))
    wanted: dict[str, Any] = {"collective": name}
    if name in ROOTED:
        wanted["root"] = int(rng.integers(ranks))
    if name in IN_PARTS:
        count = ranks**2 if name in IN_PAIRS else ranks
        wanted["parts"] = [int(rows) for rows in rng.integers(0, 6, count) * rng.integers(0, 2, count)]
    if name == "allreduce" and rng.random() < 0.4:
        total = int(rng.integers(1, 65))
        wanted["shards"] = [0, *sorted(int(start) for start in rng.integers(0, total + 1, ranks - 1)), total]
    return wanted


def check(seed: int) -> int:
    """Check one random machine and request; return the number of plans."""
    rng = np.random.default_rng(seed)
    machine = random_machine(rng)
    ranks = len(machine.endpoints)
    if ranks > MOST_RANKS:
        return 0
    operator = (AFFINE, LOGSUMEXP)[int(rng.integers(2))]
    wanted = random_request(rng, ranks)
    rows = sum(wanted["parts"]) if "parts" in wanted else int(rng.integers(0, 40))
    values = [value_of(operator, index, rows, seed) for index in range(wanted.get("shards", [ranks])[-1])]
    layout = operator.layout({name: (array.shape, array.dtype) for name, array in values[0].items()})
    parts, shards = (tuple(wanted.get(key, ())) for key in ("parts", "shards"))
    collective = Collective(wanted["collective"], ranks, wanted.get("root", 0), parts, shards)
    plans = every_plan(machine, on_every_endpoint(machine, collective, operator, layout))
    for plan in plans:
        topocomm.check_certificate(machine, plan)
        assert plan.certificate.gap >= LIMIT_GAP, f"{plan.algorithm} beats its bound: {plan.certificate}"
        assert Plan.loads(dumps(plan)).digest == plan.digest, f"{plan.algorithm}: its file is another plan"
        check_replay(plan, operator, values)
    if collective.name in ("allreduce", "reduce") and not collective.shards:
        run(machine, operator, plans, values)
    return len(plans)


def run(machine: Topology, operator: Operator, plans: list[Plan], values: list[Value]) -> None:
    """Run the plans on threads."""

    def body(comm: topocomm.Communicator) -> list[Any]:
        mine = values[comm.rank]
        return [
            comm.prepare(plan.collective.name, like=mine, operator=operator, root=plan.collective.root, plan=plan)(mine)
            for plan in plans
        ]

    for results in topocomm.run_local(body, ranks=len(values), topology=machine):
        for result in results:
            if result is not None:
                check_result(operator, values, result)


def main() -> None:
    """Run until the time is over or a plan fails."""
    parser = argparse.ArgumentParser(description="Random plans, proved and run on threads.")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    seed, plans = args.seed, 0
    while time.monotonic() < until:
        try:
            plans += check(seed)
        except BaseException:
            print(f"FAILED; again with: python tools/soak/plans.py --seed {seed} --seconds 1")
            raise
        seed += 1
    print(f"plans: {seed - args.seed} random calls, {plans} plans proved, bounded, saved and replayed; no failure")


if __name__ == "__main__":
    main()
