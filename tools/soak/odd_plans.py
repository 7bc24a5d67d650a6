"""Odd machines and requests: each must end in a plan that is proved and replayed, or in a clear error.

    python tools/soak/odd_plans.py --seconds 1200 [--seed 1]

Machines: uneven hosts with few NICs, graphs of direct links with bridges, times of 0, directions that differ, links
that are cut, ranks scattered over some of the endpoints, several on one. Calls: every collective, objective, port model
and order, roots in the middle, parts of no rows, long rows, limits of trees and memory. A plan must pass `verify` and
`check_certificate` and give the exact fold; an error must be one that `plan` is documented to raise. Ends at the first
failure with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import re
import signal
import time
from collections import Counter
from typing import Any

import numpy as np
from plans import AFFINE, LIMIT_GAP, Value, cut, random_request, replay, tree, value_of

import topocomm
from topocomm import Device, Field, Link, Operator, PlanError, Topology
from topocomm.planning.collectives import IN_PARTS, Collective
from topocomm.planning.proof.verify import verify
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.schedule.transforms import unrolled
from topocomm.topology.model import ENDPOINT_KINDS, DeviceKind

MOST_RANKS = 12
MOST_SECONDS = 120
"""Longest that a plan and its check may take: the signal of the alarm, whose default ends a program, is an error."""
EXPECTED = (
    r"falls into (more than )?\d+ pieces: ",
    r"no way leads from \S+ to \S+, also with relays, and rank \d+ needs what rank \d+ has",
    r"scratch of at most \d+ B: every plan for this takes more, the least \d+ B",
)
"""Patterns of errors that `plan` may raise for requests it cannot serve."""


def _operators() -> dict[str, Operator]:
    """By name: those that commute and those that do not, of short rows, long rows and no rows."""
    made = {}
    for name, like in ("affine", AFFINE), ("counts", None):
        fields = ("m", "c") if like else ("x",)
        combine = like.combine if like else lambda a, b: {"x": a["x"] + b["x"]}
        identity = like.identity if like else {"x": 0}
        for rows, dims in ("", ("*rows",)), (" of long rows", ("*rows", "n")), (" of no rows", ("n",)):
            made[name + rows] = Operator(
                name + rows,
                tuple(Field(field, dims, np.uint64) for field in fields),
                combine,
                identity,
                commutative=like is None,
                default_dims={"n": 1 << 14},
            )
    return made


OPERATORS = _operators()


def odd_machine(rng: np.random.Generator) -> Topology:
    """Hosts on a network, or GPUs with direct links; then figures of 0, directions that differ, links that are cut."""
    devices, pairs = _hosts(rng) if rng.random() < 0.6 else _graph(rng)
    lossy, odd, twice = (float(rng.choice([0.0, 0.0, p])) for p in (0.1, 0.3, 0.1))
    figures = _Figures(rng)
    links = []
    for a, b, kind in pairs:
        one = figures.draw(kind)
        for src, dst in (a, b), (b, a):
            one = figures.draw(kind) if rng.random() < odd else one
            copies = 0 if rng.random() < lossy else 1 + int(rng.random() < twice)
            links += [Link(src, dst, kind, None, *one)] * copies
    return Topology("odd", "soak", tuple(devices), tuple(links))


class _Figures:
    """Figures of links: of few values or of any, some unknown, some of the latencies 0."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.any_value = rng.random() < 0.3
        self.still = float(rng.choice([0.0, 0.0, 0.3]))
        self.delays_us = dict(zip(("nvlink", "pcie", "network"), rng.choice([0.3, 0.5, 1.0, 2.5, 5.0], 3), strict=True))

    def draw(self, kind: str) -> tuple[float | None, float | None, float | None]:
        """(GB/s, us, gap in us)."""
        rng = self.rng
        rate, delay_us = float(rng.choice([5.0, 25.0, 50.0, 450.0])), float(self.delays_us[kind])
        if self.any_value:
            rate, delay_us = float(10 ** rng.uniform(-1, 3)), float(10 ** rng.uniform(-2, 1))
        delay_us = 0.0 if rng.random() < self.still else delay_us
        gap_us = float(rng.choice([0.0, 0.2])) if rng.random() < 0.2 else None
        return None if rng.random() < 0.05 else rate, None if rng.random() < 0.05 else delay_us, gap_us


def _hosts(rng: np.random.Generator) -> tuple[list[Device], list[tuple[str, str, str]]]:
    """Hosts of 1 to 5 endpoints on a switch, with one NIC or one for most of them; bridges between some."""
    kinds: tuple[DeviceKind, ...] = (("gpu",), ("gpu",), ("gpu",), ("cpu",), ("gpu", "cpu"))[int(rng.integers(5))]
    devices, pairs = [Device("net", "switch", host="network")], []
    for host in (f"h{index}" for index in range(int(rng.integers(1, 5)))):
        devices.append(Device(f"{host}/switch", "switch", host=host))
        own_nics, count = rng.random() < 0.5, int(rng.integers(1, 6))
        for end in range(count):
            devices.append(Device(f"{host}/end{end}", kinds[end % len(kinds)], host=host))
            pairs.append((f"{host}/end{end}", f"{host}/switch", "pcie"))
            if end and rng.random() < 0.3:
                pairs.append((f"{host}/end{end}", f"{host}/end{end - 1}", "nvlink"))
            if own_nics and rng.random() < 0.8:
                devices.append(Device(f"{host}/nic{end}", "nic", host=host))
                pairs += [(f"{host}/end{end}", f"{host}/nic{end}", "pcie"), (f"{host}/nic{end}", "net", "network")]
        if not own_nics:
            devices.append(Device(f"{host}/nic", "nic", host=host))
            pairs += [(f"{host}/switch", f"{host}/nic", "pcie"), (f"{host}/nic", "net", "network")]
    return devices, pairs


def _graph(rng: np.random.Generator) -> tuple[list[Device], list[tuple[str, str, str]]]:
    """A tree of direct links, and more of them: few leave bridges."""
    count = int(rng.integers(1, 10))
    devices = [Device(f"GPU{index}", "gpu") for index in range(count)]
    pairs = {(f"GPU{int(rng.integers(index))}", f"GPU{index}") for index in range(1, count)}
    for _ in range(int(rng.integers(0, count + 1))):
        a, b = sorted(int(end) for end in rng.integers(0, count, 2))
        if a != b:
            pairs.add((f"GPU{a}", f"GPU{b}"))
    return devices, [(a, b, "nvlink") for a, b in sorted(pairs)]


def odd_ranks(rng: np.random.Generator, ends: tuple[str, ...]) -> list[str] | None:
    """Draw ranks: all endpoints, permuted, a subset, or several ranks on some."""
    way = int(rng.integers(4)) if len(ends) <= MOST_RANKS else 2
    if way == 0:
        return None
    order = [ends[index] for index in rng.permutation(len(ends))]
    if way == 1:
        return order
    if way == 2:
        return order[: int(rng.integers(1, min(len(ends), MOST_RANKS) + 1))]
    return [ends[int(index)] for index in rng.integers(0, len(ends), int(rng.integers(1, 9)))]


def odd_call(rng: np.random.Generator, ranks: int) -> tuple[dict[str, Any], Operator, int]:
    """(arguments of `plan`, operator, rows)."""
    call = random_request(rng, ranks)
    operator = OPERATORS[str(rng.choice(list(OPERATORS)))]
    if not operator.splittable:
        call.pop("parts", None)
        if call["collective"] in IN_PARTS:
            operator = OPERATORS["affine"]
    rows = int(rng.choice([0, 1, 2, 7, 40, 1000] if operator.splittable else [0, 1]))
    if "parts" in call:
        call["parts"] = [part * int(rows**0.5 + 1) for part in call["parts"]]
        rows = Collective(call["collective"], ranks, parts=tuple(call["parts"])).counted(sum(call["parts"]))
    if "shards" in call:
        call["order"] = "canonical"
    call["objective"] = str(rng.choice(["latency", "rounds", "throughput", "auto"]))
    call["ports"] = int(rng.integers(1, min(3, max(1, ranks - 1)) + 1))
    if rng.random() < 0.3:
        call["port_model"] = str(rng.choice(["alpha", "loggp"]))
    if rng.random() < 0.3:
        call["max_trees"] = int(rng.integers(1, 4))
    if rng.random() < 0.2:
        call["max_scratch_bytes"] = int(rng.choice([0, 1000, 1 << 20, 1 << 26]))
    return call, operator, rows


def check_fold(plan: topocomm.Plan, operator: Operator, seed: int) -> None:
    """Replay a plan on values of one item a row, whatever its rows are: every result must be the exact fold."""
    collective = plan.collective
    given = (collective.shards or (collective.ranks,))[-1]
    rows = plan.schedule.rows
    values: list[Value] = [value_of(AFFINE, index, rows, seed) for index in range(given)]
    if operator.commutative:
        values = [{"x": value["m"]} for value in values]
    chunks = unrolled(plan.schedule).chunks
    owners = collective.owners(chunks) or (None,) * len(chunks)
    whole = tree(operator, values) if collective.shards else {}
    for (rank, chunk), got in replay(plan, operator, values).items():
        if collective.shards:
            want = cut(whole, *chunks[chunk])
        else:
            first, *others = (cut(values[who], *chunks[chunk]) for who in collective.expected(rank, owners[chunk]))
            want = first
            for other in others:
                want = dict(operator.combine(want, other))
        assert all(np.array_equal(got[name], want[name]) for name in want), f"{plan.algorithm}: not the fold"


def check(seed: int) -> str:
    """Plan one odd request; return the algorithm, or the reason of its refusal."""
    rng = np.random.default_rng(seed)
    machine = odd_machine(rng)
    ranks = odd_ranks(rng, tuple(device.id for device in machine.devices if device.kind in ENDPOINT_KINDS))
    places = machine.endpoints if ranks is None else tuple(ranks)
    call, operator, rows = odd_call(rng, len(places))
    payload_bytes = rows * operator.default_layout(1).row_bytes
    try:
        plan = topocomm.plan(machine, payload_bytes=payload_bytes, operator=operator, ranks=ranks, **call)
    except PlanError as error:
        for pattern in EXPECTED:
            if re.search(pattern, str(error)):
                return pattern
        raise
    verify(
        plan.schedule,
        plan.collective,
        paths=PathFinder(machine),
        endpoints=plan.ranks,
        ports=plan.ports,
        serialised=plan.objective != "rounds",
        keep_order=not operator.commutative,
    )
    topocomm.check_certificate(machine, plan)
    assert plan.certificate.gap >= LIMIT_GAP, f"{plan.algorithm} beats its bound: {plan.certificate}"
    check_fold(plan, operator, seed)
    return plan.algorithm


def _too_long(*_: object) -> None:
    raise TimeoutError(f"no plan, or no end of its check, in {MOST_SECONDS} s")


def main() -> None:
    """Run until the time is over or a plan fails."""
    parser = argparse.ArgumentParser(description="Odd machines and calls: a proved plan, or a clear error.")
    parser.add_argument("--seconds", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    signal.signal(signal.SIGALRM, _too_long)
    seed, ended = args.seed, Counter[str]()
    while time.monotonic() < until:
        try:
            signal.alarm(MOST_SECONDS)  # a plan that never ends is a failure too
            ended[check(seed)] += 1
            signal.alarm(0)
        except BaseException:
            print(f"FAILED; again with: python tools/soak/odd_plans.py --seed {seed} --seconds 1")
            raise
        seed += 1
    refused = sum(ended.pop(pattern, 0) for pattern in EXPECTED)
    print(f"odd plans: {seed - args.seed} calls, {len(ended)} algorithms, {refused} calls refused in words; no failure")


if __name__ == "__main__":
    main()
