"""Random machines, collectives and payloads: every plan is proved, bounded, saved, loaded and run on threads.

    python tools/soak/plans.py --seconds 1200 [--seed 1]

A plan must not beat its own bounds, must survive its file, and must give the exact fold: affine maps over integers,
which do not commute, compose in rank order; partials merge as the float64 formula says. Ends at the first failure
with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import topocomm
from attention import LOGSUMEXP
from topocomm import Device, Field, Link, Operator, Topology
from topocomm.planning.formats.plan_json import dumps, loads
from topocomm.planning.planner import every_plan

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
    """What a rank gives."""
    rng = np.random.default_rng([seed, rank])
    if operator is AFFINE:
        return {name: rng.integers(0, 2**63, rows, np.uint64) for name in ("m", "c")}
    lse = np.where(rng.random(rows) < 0.2, -np.inf, 4 * rng.standard_normal(rows)).astype(np.float32)
    return {"out": rng.standard_normal((rows, 3), dtype=np.float32), "lse": lse}


def check_result(operator: Operator, values: list[dict[str, Any]], got: dict[str, Any]) -> None:
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


def check(seed: int) -> int:
    """One random machine and call; how many plans were checked."""
    rng = np.random.default_rng(seed)
    machine = random_machine(rng)
    ranks = len(machine.endpoints)
    if ranks > MOST_RANKS:
        return 0
    operator = (AFFINE, LOGSUMEXP)[int(rng.integers(2))]
    collective = ("allreduce", "reduce")[int(rng.integers(2))]
    rows, root = int(rng.integers(0, 40)), int(rng.integers(ranks))
    values = [value_of(operator, rank, rows, seed) for rank in range(ranks)]
    layout = operator.layout({name: (array.shape, array.dtype) for name, array in values[0].items()})
    plans = every_plan(machine, collective, operator, layout, root if collective == "reduce" else 0)
    for plan in plans:
        assert plan.certificate.gap >= LIMIT_GAP, f"{plan.algorithm} beats its bound: {plan.certificate}"
        assert loads(dumps(plan)).digest == plan.digest, f"{plan.algorithm}: its file is another plan"

    def body(comm: topocomm.Communicator) -> list[Any]:
        mine = values[comm.rank]
        return [
            comm.prepare(collective, like=mine, operator=operator, root=plan.collective.root, plan=plan)(mine)
            for plan in plans
        ]

    for results in topocomm.run_local(body, ranks=ranks, topology=machine):
        for plan, result in zip(plans, results, strict=True):
            if result is not None and (operator.commutative or plan.proof.order_kept):
                check_result(operator, values, result)
    return len(plans)


def main() -> None:
    """Until the time is over, or something fails."""
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
    print(f"plans: {seed - args.seed} random calls, {plans} plans proved, bounded, saved and run; no failure")


if __name__ == "__main__":
    main()
