"""Least rounds of a collective: doubling, messages in a row, and messages per port."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from topocomm.planning.bounds.demand import Demand, farthest
from topocomm.planning.bounds.machine_columns import Machine


@dataclass(frozen=True)
class Bound:
    """A bound that no schedule beats.

    Attributes:
        value: Rounds, us or GB/s; None where nothing bounds the throughput.
        witness: The argument as plain JSON data, from which others derive the value again: which of the three bounds it
            is (`bounds`), the `kind` of argument, and its ranks, devices and figures (docs/concepts/cost-models.md).
    """

    value: float | None
    argument: str
    witness: dict[str, Any]


def payload_words(share: float) -> str:
    """Return a share of the payload in words."""
    return "the whole payload" if abs(share - 1) < 1e-9 else f"{share:.4g} of the payload"


def witness_of(bounds: str, kind: str, **data: Any) -> dict[str, Any]:
    """Return a witness."""
    return {"bounds": bounds, "kind": kind, **data}


def least_rounds(ranks: int, ports: int) -> int:
    """Return ceil(log_{K+1} P), in integers."""
    rounds, reached = 0, 1
    while reached < ranks:
        reached *= ports + 1
        rounds += 1
    return rounds


def rounds_bound(demand: Demand, machine: Machine, ports: int) -> Bound:
    """Return the greatest of these bounds; of equal ones the first.

    doubling: the values that a rank knows, its own included, and the ranks that know something of its value, grow at
    most (K+1)-fold in a round (Bruck et al. 1997). The last rank of an exscan knows its own value without needing it,
    so it takes ceil(log_{K+1} P) rounds as in a scan. hops: a value passes one endpoint a round. port: ranks of one
    endpoint share its ports, and each that needs something receives a message. messages: E endpoints serve E K
    messages a round.
    """
    if demand.least_messages() == 0:
        return Bound(0, "nothing needs to be sent", witness_of("rounds", "none"))
    bounds = []
    for side, counts in (("hears", demand.heard()), ("reaches", demand.reached())):
        rank = int(counts.argmax())
        needs = int(counts[rank])
        words = f"ceil(log{ports + 1} {needs}) rounds with {_ports_text(ports)}"
        witness = witness_of("rounds", "doubling", side=side, rank=rank, needs=needs)
        bounds.append(Bound(least_rounds(needs, ports), words, witness))
    bounds += _ports(demand, machine, ports)
    length, src, dst = farthest(demand, machine, machine.is_end[machine.src].astype(float))
    hops, a, b = int(length), machine.ids[machine.place[src]], machine.ids[machine.place[dst]]
    witness = witness_of("rounds", "hops", **{"from": src, "to": dst, "hops": hops})
    bounds.append(Bound(hops, f"{hops} messages in a row from {a} to {b}", witness))
    return max(bounds, key=lambda bound: bound.value or 0.0)


def _ports(demand: Demand, machine: Machine, ports: int) -> Iterator[Bound]:
    """Yield the bounds of ports, above those of doubling only where ranks share endpoints."""
    total, ends = demand.least_messages(), len(machine.ends)
    for direction, busy in (("in", demand.heard() > 1), ("out", demand.reached() > 1)):
        messages = np.bincount(machine.place[busy], minlength=machine.devices)
        end = int(messages.argmax())
        yield Bound(
            -(-int(messages[end]) // ports),
            f"{messages[end]} ranks on {machine.ids[end]} must {'receive' if direction == 'in' else 'send'}, "
            f"{_ports_text(ports)}",
            witness_of("rounds", "port", endpoint=machine.ids[end], direction=direction, messages=int(messages[end])),
        )
    yield Bound(
        -(-total // (ends * ports)),
        f"{total} messages in all, {ends} endpoint{'s' * (ends > 1)} with {_ports_text(ports)}",
        witness_of("rounds", "messages", messages=total, endpoints=ends),
    )


def _ports_text(ports: int) -> str:
    return f"{ports} port{'s' * (ports > 1)}"
