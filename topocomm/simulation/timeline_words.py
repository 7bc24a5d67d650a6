"""A timeline in words, and as a document: what it took, why, and what the links carried."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from topocomm.planning.cost.simulated_work import COMPUTE, NO_TASK, SEND
from topocomm.planning.cost.timeline import Timeline
from topocomm.planning.routing.routes import Edge
from topocomm.simulation.path_back import CriticalPath, Step, critical_path
from topocomm.topology.draw.names import plural

WIDTH = 80
LEAST_US = 0.005
"""Shortest step that the text has: what is shorter prints as 0.00."""
MOST_STEPS, MOST_LINKS = 12, 6
"""Steps of the critical path and links that the text lists."""


def timeline_text(timeline: Timeline, path: CriticalPath | None = None) -> list[str]:
    """Return the lines that say what took how long: the critical path, its causes, and the busiest links."""
    path = path or critical_path(timeline)
    if not path.steps:
        return ["nothing to do: 0 us"]
    total_us = timeline.total_us
    causes = ", ".join(f"{name} {us:.2f} us ({us / max(total_us, 1e-12):.0%})" for name, us in path.by_cause.items())
    lines = _wrapped("of it    ", causes or "nothing")
    lines.append(f"critical path, {plural(len(path.steps), 'task')} back from the last arrival:")
    groups = _groups(timeline, [step for step in path.steps if step.took_us >= LEAST_US])
    half = MOST_STEPS // 2
    for number, group in enumerate(groups):
        if len(groups) > MOST_STEPS and half <= number < len(groups) - half:
            if number == half:
                until_us = groups[-half][0].start_us
                left = sum(len(each) for each in groups[half:-half])
                lines.append(f"  ... {plural(left, 'more task')}, {until_us - group[0].start_us:.2f} us")
            continue
        lines += _wrapped(f"{group[0].start_us:10.2f}", step_words(timeline, group))
    return [*lines, *_links(timeline)]


def _groups(timeline: Timeline, steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that follow each other as equal messages of one round, each held up by a port, together."""
    work = timeline.work
    groups: list[list[Step]] = []
    for step in steps:
        if groups and groups[-1][-1].port:
            last, columns = groups[-1][-1], (work.round, work.label, work.payload_bytes)
            if all(column[last.task] == column[step.task] for column in columns):
                groups[-1].append(step)
                continue
        groups.append([step])
    return groups


def step_words(timeline: Timeline, steps: Sequence[Step]) -> str:
    """Return a task of the critical path in words, or equal messages in turn: how long, and what limited them."""
    work, step = timeline.work, steps[0]
    name, round_ = work.labels[work.label[step.task]], int(work.round[step.task])
    src, dst = (work.devices[end[step.task]] for end in (work.src, work.dst))
    took_us = sum(each.took_us for each in steps)
    if work.kind[step.task] != SEND:
        what = f"{name}: {src} computes" if work.kind[step.task] == COMPUTE else f"round {round_}: {src} starts"
        return f"{what}, {took_us:.2f} us"
    size = f"{int(work.payload_bytes[step.task])} B"
    part = f"{name}, round {round_}" if len(work.labels) > 1 else f"round {round_}"
    if len(steps) == 1:
        words = [f"{part}: {src} -> {dst}, {size}, {took_us:.2f} us"]
    else:
        tasks = [each.task for each in steps]
        one_src, one_dst = (len(set(end[tasks].tolist())) == 1 for end in (work.src, work.dst))
        where = f" out of {src}" if one_src else f" into {dst}" if one_dst else f", {src} -> {dst} first"
        words = [f"{part}: {len(steps)} messages of {size} in turn{where}, {took_us:.2f} us"]
    links = {each.link for each in steps}
    if step.link != NO_TASK and len(links) == 1:
        sharers = max([len(steps)] + [each.sharers for each in steps])
        words.append(link_words(timeline, step.link, sharers, round_))
    elif links == {NO_TASK} and step.bytes_us > 0:
        words.append("held by a limit of its own")
    if steps[-1].port:
        words.append(f"the next one waited for a port of {work.devices[work.src[steps[-1].task]]} or its receiver")
    return "; ".join(words)


def link_words(timeline: Timeline, link: int, sharers: int, round_: int) -> str:
    """Return what a link carried meanwhile, as "NIC3 of host2 carried 4 messages in round 2"."""
    edge = timeline.paths.edges[link]
    rate = f"{timeline.paths.link_gb_per_s[link]:g} GB/s"
    return f"{_named(timeline, edge)} ({rate}) carried {plural(sharers, 'message')} in round {round_}"


def _named(timeline: Timeline, edge: Edge) -> str:
    """The NIC of a link, or its two ends."""
    devices = timeline.paths.topology.by_id
    for end in edge:
        device = devices[end]
        if device.kind == "nic":
            return f"{end.removeprefix(device.host + '/')} of {device.host}, {edge[0]} -> {edge[1]}"
    return f"{edge[0]} -> {edge[1]}"


def busiest_links(timeline: Timeline, most: int = MOST_LINKS) -> list[int]:
    """Return the numbers of the links with the highest use, highest first; of equal ones the lowest number first."""
    order = np.argsort(-np.round(timeline.link_use, 9), kind="stable")[:most]
    return [int(link) for link in order if timeline.link_bytes[link] > 0]


def _wrapped(head: str, text: str) -> list[str]:
    """A head and a text in lines of at most WIDTH columns, but for longer words."""
    indent = " " * (len(head) + 2)
    return wrap(text, WIDTH, initial_indent=f"{head}  ", subsequent_indent=indent, break_on_hyphens=False)


def _links(timeline: Timeline) -> list[str]:
    chosen = busiest_links(timeline)
    if not chosen:
        return []
    used = int((timeline.link_bytes > 0).sum())
    lines = [f"busiest of {plural(used, 'link')}: use of the whole time, while busy; GB; messages"]
    for link in chosen:
        busy_us, carried = timeline.link_busy_us[link], timeline.link_bytes[link]
        meanwhile = carried / max(busy_us * timeline.paths.link_gb_per_s[link] * 1e3, 1e-12)
        src, dst = timeline.paths.edges[link]
        lines.append(
            f"  {timeline.link_use[link]:6.1%} {min(meanwhile, 1.0):6.1%} {carried / 1e9:10.4g} "
            f"{timeline.link_messages[link]:8d}  {src} -> {dst}"
        )
    return lines


def timeline_document(timeline: Timeline, path: CriticalPath | None = None) -> dict[str, Any]:
    """Return the timeline as plain JSON values (docs/guide/simulate.md has the fields)."""
    path = path or critical_path(timeline)
    work, edges = timeline.work, timeline.paths.edges
    steps = [
        {
            "label": work.labels[work.label[step.task]],
            "round": int(work.round[step.task]),
            "kind": {SEND: "message", COMPUTE: "compute"}.get(int(work.kind[step.task]), "join"),
            "src": work.devices[work.src[step.task]],
            "dst": work.devices[work.dst[step.task]],
            "payload_bytes": int(work.payload_bytes[step.task]),
            "start_us": step.start_us,
            "end_us": step.end_us,
            "before_us": step.before_us,
            "bytes_us": step.bytes_us,
            "latency_us": step.latency_us,
            "held_a_port": step.port,
            "limited_by": None if step.link == NO_TASK else list(edges[step.link]),
            "messages_on_it": step.sharers,
        }
        for step in path.steps
    ]
    links = [
        {
            "src": edges[link][0],
            "dst": edges[link][1],
            "gb_per_s": float(timeline.paths.link_gb_per_s[link]),
            "bytes": int(timeline.link_bytes[link]),
            "messages": int(timeline.link_messages[link]),
            "busy_us": float(timeline.link_busy_us[link]),
            "use": float(timeline.link_use[link]),
        }
        for link in np.flatnonzero(timeline.link_messages).tolist()
    ]
    return {
        "total_us": timeline.total_us,
        "messages": work.messages,
        "wire_bytes": work.sent_bytes,
        "events": timeline.events,
        "wall_s": timeline.wall_s,
        "causes_us": path.by_cause,
        "critical_path": steps,
        "links": links,
    }
