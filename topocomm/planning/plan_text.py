"""A plan as text that a person understands: what is done, what it costs, what bounds it, what goes where."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from textwrap import wrap

from topocomm.planning.paths import PathFinder
from topocomm.planning.plan import Plan
from topocomm.planning.schedule import NO_PATH, Transfer, split_rows
from topocomm.topology.model import Topology

WIDTH = 80
MOST_ROUNDS = 16
MOST_MOVES = 16


def plan_text(plan: Plan, topology: Topology) -> str:
    """Lines of at most 80 columns, but for names that are longer."""
    f, c = plan.figures, plan.certificate
    algbw = "" if f.algbw_gb_per_s is None else f", {f.algbw_gb_per_s:.2f} GB/s"
    long_run = "" if f.throughput_gb_per_s is None else f"pipelined {f.throughput_gb_per_s:.2f} GB/s; "
    most = c.throughput_upper_bound_gb_per_s
    limit = "" if most is None else f", throughput <= {most:.2f} GB/s"
    ports = f"{plan.ports} port" + "s" * (plan.ports > 1)
    lines = [
        f"{plan.collective.name} {plan.operator}, {plan.payload_bytes} B, {_count(len(plan.ranks), 'rank')} "
        f"on {topology.name}",
        *_shares(plan),
        f"  plan    {plan.algorithm}: {_count(f.rounds, 'round')}, {_count(f.transfers, 'message')}, "
        f"{f.wire_bytes} B on the wire",
        f"  memory  {f.scratch_bytes} B scratch a rank",
        f"  time    {f.alpha_us:.2f} us without bytes, {f.predicted_us:.2f} us with{algbw}",
        f"          {long_run}model {plan.port_model}, {ports}, objective {plan.objective}",
        f"  bounds  rounds >= {c.rounds_lower_bound}, time >= {c.alpha_lower_bound_us:.2f} us{limit}",
        *_wrap("  gap     ", f"{c.gap:.3f} x the {plan.objective} bound: {c.argument}"),
        *_wrap("  proof   ", ", ".join(_proved(plan))),
        *(f"  assumed {note}" for note in plan.assumed),
        f"  digest  {plan.digest}",
        *_rounds(plan, PathFinder(topology)),
    ]
    return "\n".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def _shares(plan: Plan) -> list[str]:
    """Uneven parts, and virtual shards: what the ranks give or get."""
    collective = plan.collective
    if collective.shards:
        owned = [_range(low, high) for low, high in pairwise(collective.shards)]
        return _wrap("  shards  ", f"of ranks 0..{collective.ranks - 1}, canonical order: {', '.join(owned)}")
    even = tuple(rows for _, rows in split_rows(plan.schedule.rows, collective.ranks))
    if collective.parts in ((), even):
        return []
    verb = "given" if collective.name == "allgather" else "got"
    return _wrap(
        "  parts   ", f"rows {verb} by ranks 0..{collective.ranks - 1}: {', '.join(map(str, collective.parts))}"
    )


def _range(low: int, high: int) -> str:
    """The numbers low..high-1."""
    return "none" if low == high else str(low) if low + 1 == high else f"{low}-{high - 1}"


def _proved(plan: Plan) -> list[str]:
    words = {
        "complete": "complete",
        "each_contribution_once": "each contribution once",
        "order_kept": "rank order kept",
        "uniform": "one expression tree on all ranks (equal bits)",
        "ports_respected": "ports respected",
        "links_exist": "all routes exist",
        "deadlock_free": "deadlock-free",
        "canonical_tree": "the canonical tree over the virtual shards",
    }
    return [text for name, text in words.items() if getattr(plan.proof, name)]


def _rounds(plan: Plan, paths: PathFinder) -> list[str]:
    lines = []
    moves = plan.schedule.transfer_list()
    for round_ in range(min(plan.schedule.rounds, MOST_ROUNDS)):
        here = [move for move in moves if move.round == round_]
        if here:
            lines += _wrap(f"  round {round_ + 1:<2} ", " ".join([*_exchanges(here), _over(plan, here, paths)]))
    if plan.schedule.rounds > MOST_ROUNDS:
        lines.append(f"  ... and {plan.schedule.rounds - MOST_ROUNDS} more rounds (--format json has them all)")
    return lines


def _exchanges(moves: list[Transfer]) -> list[str]:
    """`0<>1` where two ranks exchange, `0>1` where one sends."""
    pairs = dict.fromkeys((move.src, move.dst) for move in moves)
    shown = []
    for src, dst in pairs:
        if (dst, src) not in pairs:
            shown.append(f"{src}>{dst}")
        elif src < dst:
            shown.append(f"{src}<>{dst}")
    rest = len(shown) - MOST_MOVES
    return shown if rest <= 0 else [*shown[:MOST_MOVES], f"and {rest} more"]


def _over(plan: Plan, moves: list[Transfer], paths: PathFinder) -> str:
    """The link kinds that the round's messages cross."""
    kinds = {(link.src, link.dst): link.kind for link in paths.topology.links}
    crossed: Counter[str] = Counter()
    for move in moves:
        a, b = plan.ranks[move.src], plan.ranks[move.dst]
        named = move.path != NO_PATH
        route = paths.explicit(plan.schedule.paths[move.path], a, b) if named else paths.cheapest(a, b)
        crossed.update({kinds[edge] for edge in route.edges})
    return f"({', '.join(sorted(crossed))})" if crossed else ""


def _wrap(head: str, text: str) -> list[str]:
    """The text after its head, in lines of at most WIDTH columns where its words allow."""
    indent = " " * len(head)
    return wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
