"""A plan as text: request, costs, bounds and rivals; then the messages of each round, their links and arrivals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from textwrap import wrap

import numpy as np

from topocomm.planning.collectives import IN_PAIRS, PARTS_GIVEN, collective_of
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.messages import chunk_bytes, messages_of, routes_of
from topocomm.planning.cost.pipeline_head import MOST_MESSAGES, adds_rounds, head_of
from topocomm.planning.cost.schedule_work import of_messages
from topocomm.planning.cost.simulated_work import SEND
from topocomm.planning.plan import Plan
from topocomm.planning.report.plan_comparison import AS_GOOD, Rival, behind, figure_of, times
from topocomm.planning.routing.paths import PathFinder
from topocomm.planning.routing.routes import Floats, Ints
from topocomm.planning.schedule.schedule import split_rows
from topocomm.topology.draw.names import plural
from topocomm.topology.model import Topology

WIDTH = 80
BY_ROUNDS = (
    "an estimate: a round takes what its busiest link or port does, for the messages are too many to follow; "
    "topocomm simulate follows them"
)
MOST_ROUNDS = 16
MOST_MOVES, FEW_MOVES = 16, 4
"""Most messages listed of a round, and of those over one set of link kinds where there are many sets."""
MOST_RIVALS = 4
MOST_PLACES = 6
"""Runs of ranks on successive endpoints that are listed."""
_PROVED = {
    "complete": "complete",
    "each_contribution_once": "each contribution once",
    "order_kept": "rank order kept",
    "uniform": "one expression tree on all ranks (equal bits)",
    "ports_respected": "ports respected",
    "links_exist": "all routes exist",
    "deadlock_free": "deadlock-free",
    "canonical_tree": "the canonical tree over the virtual shards",
}
_LEAST = {"latency": "least time without bytes", "rounds": "fewest rounds", "auto": "least time with these bytes"}


def plan_text(
    plan: Plan,
    topology: Topology,
    rivals: Sequence[Rival] | str = (),
    defect: str = "",
    notes: Sequence[tuple[str, str]] = (),
) -> str:
    """Return lines of at most 80 columns, but for longer names.

    `rivals` are the candidates for its request, best first (`plan_comparison.ranked`), or why they are not known;
    `defect` is the cost of a defect of the machine (`plan_comparison.defect`), `notes` are others, (label, text): of
    `in_network_advice`, `sum_comparison`, `left_out`.
    """
    f, c, repeat, native = plan.figures, plan.certificate, plan.schedule.repeat, plan.native
    algbw = "" if f.algbw_gb_per_s is None else f", {f.algbw_gb_per_s:.2f} GB/s"
    long_run = "" if f.throughput_gb_per_s is None else f"pipelined {f.throughput_gb_per_s:.2f} GB/s; "
    most = c.throughput_upper_bound_gb_per_s
    limit = "" if most is None else f", throughput <= {most:.2f} GB/s"
    least = c.predicted_lower_bound_us
    with_bytes = "" if least is None else f"; with these bytes >= {least:.2f} us"
    slices = launches = call = ""
    paths = PathFinder(topology)
    followed = head_of(plan.schedule, plan.ranks, paths).schedule
    if repeat is not None:
        when = f"each {plural(repeat.stagger_rounds, 'round')} after the one before; below are the rounds of one slice"
        slices = f"{repeat.count} of every chunk, {when if repeat.stagger_rounds else 'all in the same messages'}"
    if plan.launch_us:
        bound = "; the gap is to the bound and one" if plan.objective == "auto" else ""
        launches = f"{plan.launch_us * f.rounds:.2f} us of it launches, {plan.launch_us:g} us a round{bound}"
    if native is not None:
        bits = "; its order and bits are the library's, not proved; all else here is of the schedule"
        chosen = "chosen" if native.chosen else "not chosen"
        call = f"{native.call} is {chosen}: {native.why}{bits if native.chosen else ''}"
    kinds = dict.fromkeys(link.kind for link in topology.links if link.latency_us_source == "assumed")
    figures = f"latency of {', '.join(kinds)} assumed, from the table of link kinds" if kinds else ""
    messages = f"{plural(f.transfers, 'message')}, {f.wire_bytes} B on the wire"
    lines = [
        f"{plan.title}, {plan.payload_bytes} B, {plural(len(plan.ranks), 'rank')} on {topology.name}",
        *_wrap("  defect  ", defect),
        *_wrap("  ranks   ", placed(plan.ranks)),
        *_shares(plan),
        *_wrap("  plan    ", f"{plan.algorithm}: {plural(f.rounds, 'round')}, {messages}"),
        *_wrap("  slices  ", slices),
        f"  memory  {f.scratch_bytes} B scratch a rank",
        f"  time    {f.alpha_us:.2f} us without bytes, {f.predicted_us:.2f} us with{algbw}",
        f"          {long_run}model {plan.port_model}, {plural(plan.ports, 'port')}, objective {plan.objective}",
        *_wrap(" " * 10, launches),
        *_wrap(" " * 10, BY_ROUNDS if adds_rounds(plan.schedule, followed, f.transfers) else ""),
        *_wrap("  native  ", call),
        *_wrap(
            "  bounds  ",
            f"{least_rounds(plan)}, time >= {c.alpha_lower_bound_us:.2f} us{limit}{with_bytes}",
        ),
        *_wrap("  gap     ", f"{c.gap:.3f} x the {plan.objective} bound: {c.argument}"),
        *_wrap("  optimal ", c.proved_by_search),
        *_choice(plan, rivals),
        *(line for label, note in notes for line in _wrap(f"  {label:<8}", note)),
        *_wrap("  proof   ", ", ".join(words for name, words in _PROVED.items() if getattr(plan.proof, name))),
        *_wrap("  figures ", figures),
        *(line for note in plan.assumed for line in _wrap("  assumed ", note)),
        f"  digest  {plan.digest}",
        *_rounds(plan, paths),
    ]
    return "\n".join(lines)


def placed(ranks: Sequence[str]) -> str:
    """Return the ranks with their endpoints, cut where there are many: `0-7 on h0/GPU0-7, 8-15 on h1/GPU0-7`."""
    runs: list[tuple[str, int, int, int]] = []  # (name without number, first number, first rank, count)
    for rank, name in enumerate(ranks):
        split = re.fullmatch(r"(.*?)(\d{1,9})", name)
        stem, number = (split[1], int(split[2])) if split else (name, -1)
        if runs and split and runs[-1][0] == stem and runs[-1][1] + runs[-1][3] == number:
            runs[-1] = (*runs[-1][:3], runs[-1][3] + 1)
        else:
            runs.append((stem, number, rank, 1))
    shown = [
        f"{rank} on {stem}{number if number >= 0 else ''}"
        if count == 1
        else f"{rank}-{rank + count - 1} on {stem}{number}-{number + count - 1}"
        for stem, number, rank, count in runs[:MOST_PLACES]
    ]
    return ", ".join(shown) + (f", and {len(runs) - MOST_PLACES} more runs" if len(runs) > MOST_PLACES else "")


def _choice(plan: Plan, rivals: Sequence[Rival] | str) -> list[str]:
    if isinstance(rivals, str):
        return _wrap("  others  ", f"not known: {rivals}")
    if not rivals:
        return []
    others = [rival for rival in rivals if rival.algorithm != plan.algorithm or times(plan, rival) < AS_GOOD[0]]
    if not others:
        return ["  why     no other algorithm fits this request"]
    reason = _LEAST.get(plan.objective, "most bytes a second in the long run")
    own = figure_of(plan, plan.figures)
    if any(times(plan, rival) < AS_GOOD[0] for rival in others):
        reason = f"kept as it is, not the {reason}"
    costs = [f"{rival.algorithm} {_figure(plan, rival.figure)} ({behind(plan, rival)})" for rival in others]
    rest = f", and {len(costs) - MOST_RIVALS} more" if len(costs) > MOST_RIVALS else ""
    return [
        *_wrap("  why     ", f"{reason} of {len(others) + 1} algorithms that fit: {_figure(plan, own)}"),
        *_wrap("  others  ", ", ".join(costs[:MOST_RIVALS]) + rest),
    ]


def _figure(plan: Plan, figure: float) -> str:
    if plan.objective == "rounds":
        return plural(int(figure), "round")
    return f"{figure:.2f} GB/s" if plan.objective == "throughput" else f"{figure:.2f} us"


def _shares(plan: Plan) -> list[str]:
    collective = plan.collective
    if collective.shards:
        owned = [
            "none" if low == high else str(low) if low + 1 == high else f"{low}-{high - 1}"
            for low, high in pairwise(collective.shards)
        ]
        return _wrap("  shards  ", f"of ranks 0..{collective.ranks - 1}, canonical order: {', '.join(owned)}")
    in_pairs = collective.name in IN_PAIRS
    even = collective_of(collective.name, collective.ranks, collective.counted(plan.schedule.rows)).parts
    if collective.parts in ((), even):
        return []
    if in_pairs:
        most = max(collective.parts)
        return _wrap("  parts   ", f"of {sum(map(bool, collective.parts))} pairs of ranks, up to {plural(most, 'row')}")
    verb = "given" if collective.name in PARTS_GIVEN else "got"
    return _wrap(
        "  parts   ", f"rows {verb} by ranks 0..{collective.ranks - 1}: {', '.join(map(str, collective.parts))}"
    )


def _rounds(plan: Plan, paths: PathFinder) -> list[str]:
    lines = []
    schedule, times = plan.schedule, round_times(plan, paths)
    messages = messages_of(schedule, chunk_bytes(schedule, 0))
    routes = routes_of(messages, schedule, plan.ranks, paths)
    of_edge = {(link.src, link.dst): link.kind for link in paths.topology.links}
    kinds = sorted(set(of_edge.values()))
    bits = np.array([1 << kinds.index(of_edge[edge]) for edge in paths.edges], dtype=np.int64)
    crossed = np.zeros(len(routes), dtype=np.int64)  # the kinds of links that each route crosses, one bit each
    crossing = np.flatnonzero(routes.hops)
    if len(crossing):
        crossed[crossing] = np.bitwise_or.reduceat(bits[routes.links], routes.starts[crossing])
    edges = np.searchsorted(messages.round, np.arange(schedule.rounds + 1)).tolist()
    for round_, (low, high) in enumerate(list(pairwise(edges))[:MOST_ROUNDS]):
        own = crossed[low:high]
        words = []
        masks = own[np.sort(np.unique(own, return_index=True)[1])].tolist()
        for mask in masks:
            which = low + np.flatnonzero(own == mask)
            pairs = zip(messages.src[which].tolist(), messages.dst[which].tolist(), strict=True)
            over = ", ".join(kind for bit, kind in enumerate(kinds) if mask >> bit & 1)
            words += [*_exchanges(pairs, max(MOST_MOVES // len(masks), FEW_MOVES)), *[f"({over});"] * bool(over)]
        lines += _wrap(f"  round {round_ + 1:<2} ", " ".join(words).removesuffix(";")) if words else []
        lines += _wrap(" " * 11, times[round_]) if words else []
    if schedule.rounds > MOST_ROUNDS:
        lines.append(f"  ... and {schedule.rounds - MOST_ROUNDS} more rounds (--format json has them all)")
    return lines


def round_times(plan: Plan, paths: PathFinder) -> list[str]:
    """Return for each round the bytes of a message and the last arrival: `16512 B each, all there at 0.64 us`.

    The times are those of the plan's own port model and payload. For a schedule of very many messages, and for a
    pipeline, whose slices overlap, only the bytes of one slice are given.
    """
    schedule, sizes = plan.schedule, message_sizes(plan)
    if (times := transfer_times_us(plan, paths)) is None:
        return sizes
    edges = np.searchsorted(schedule.transfers[:, 0], np.arange(schedule.rounds + 1)).tolist()
    ends = [float(times[1][begin:end].max(initial=0.0)) for begin, end in pairwise(edges)]
    return [
        ", ".join(filter(None, [size, f"all there at {end:.2f} us"])) for size, end in zip(sizes, ends, strict=True)
    ]


def least_rounds(plan: Plan) -> str:
    """Return the bound of the rounds, which is for one message a port in each: plans for loggp may send several."""
    least = plan.certificate.rounds_lower_bound
    return f"rounds >= {least}" + " of one message a port" * (plan.figures.rounds < least)


def message_sizes(plan: Plan) -> list[str]:
    """Return for each round the bytes of a message, least and most: `16512 to 49536 B each`; of a pipeline's slice."""
    row_bytes = plan.row_bytes
    schedule, repeat = plan.schedule, plan.schedule.repeat
    messages = messages_of(schedule, chunk_bytes(schedule, row_bytes))
    low = high = messages.payload_bytes
    if repeat is not None and repeat.stagger_rounds:  # of slices of unequal rows
        rows = [[own for _, own in split_rows(whole, repeat.count)] for _, whole in schedule.chunks]
        slices = np.unique(np.array(rows).T, axis=0)
        every = [messages_of(schedule, slice_ * row_bytes).payload_bytes for slice_ in slices]
        low, high = np.min(every, axis=0), np.max(every, axis=0)
    edges = np.searchsorted(messages.round, np.arange(schedule.rounds + 1)).tolist()
    return [_sizes(low[begin:end], high[begin:end]) for begin, end in pairwise(edges)]


def transfer_times_us(plan: Plan, paths: PathFinder) -> tuple[Floats, Floats] | None:
    """Return when each transfer starts at its source, and when it is at its destination, both float64 [n].

    None for a schedule of very many messages and for a pipeline.
    """
    schedule = plan.schedule
    messages = messages_of(schedule, chunk_bytes(schedule, plan.row_bytes))
    if not 0 < len(messages) <= MOST_MESSAGES or schedule.repeat is not None:
        return None
    work = of_messages(schedule, messages, plan.ranks)
    timeline = simulate(work, paths, ports=plan.ports, port_model=plan.port_model)
    sends = timeline.work.kind == SEND
    return timeline.start_us[sends][messages.of_transfer], timeline.arrival_us[sends][messages.of_transfer]


def _sizes(low: Ints, high: Ints) -> str:
    """Range of the bytes of a round's messages; empty where there are none."""
    least, most = min(low.tolist(), default=0), max(high.tolist(), default=0)
    return "" if not most else f"{least} B each" if least == most else f"{least} to {most} B each"


def _exchanges(messages: Iterable[tuple[int, int]], most: int) -> list[str]:
    """At most `most` exchanges `0<>1` and sends `0>1`."""
    pairs = dict.fromkeys(messages)
    shown = []
    for src, dst in pairs:
        if (dst, src) not in pairs:
            shown.append(f"{src}>{dst}")
        elif src < dst:
            shown.append(f"{src}<>{dst}")
    rest = len(shown) - most
    return shown if rest <= 0 else [*shown[:most], f"and {rest} more"]


def _wrap(head: str, text: str) -> list[str]:
    """The text after its head, in lines of at most WIDTH columns but for longer words."""
    indent = " " * len(head)
    return wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
