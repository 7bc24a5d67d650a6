"""Rows of NCCL's collectives by the simulator, message by message, beside the closed forms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from topocomm.calibration.error_report import RowError
from topocomm.calibration.fit_figures import with_ll128
from topocomm.planning.cost.events import simulate
from topocomm.planning.libraries.nccl_choice import choose
from topocomm.planning.routing.paths import PathFinder
from topocomm.simulation.libraries.nccl.nccl_work import call_work

from .page import Scored, percent

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter")
ALGORITHMS = ("ring", "tree", "nvls", "nvls-tree")


class SimulatedRow(NamedTuple):
    """A row with the time of the simulator, the algorithm, and the number of messages."""

    row: RowError
    algorithm: str
    simulated_us: float
    messages: int


def simulated_rows(scored: Scored) -> Iterator[SimulatedRow]:
    """Yield the rows of NCCL's collectives that the simulator has, with the family's figures."""
    finders: dict[str, PathFinder] = {}
    places = {id(model.table): place for model, place in zip(scored.family.models, scored.family.places, strict=True)}
    for each in scored.fitted:
        table, shape = each.model.table, each.model.shape
        library = with_ll128(each.model, scored.fit.has_ll128).library
        if library.kind != "nccl" or table.collective not in COLLECTIVES:
            continue
        place = places[id(table)]
        finder = finders.setdefault(place.topology.name, PathFinder(place.topology))
        choice = choose(
            shape,
            table.collective,
            each.row.payload_bytes,
            version=library.version,
            has_ll128=library.has_ll128,
        )
        if choice.algorithm not in ALGORITHMS:
            continue
        work = call_work(
            topology=place.topology,
            shape=shape,
            figures=scored.fit.figures,
            collective=table.collective,
            payload_bytes=each.row.payload_bytes,
            choice=choice,
        )
        yield SimulatedRow(each, choice.algorithm, simulate(work, finder).total_us, work.messages)


def simulated_lines(rows: list[SimulatedRow]) -> list[str]:
    """Return a table of errors of rows that were not fitted, by the closed form and by the simulator."""
    lines = [
        "| algorithm | rows not fitted | closed form: median, 90 % | simulated: median, 90 % | simulated / closed |"
    ]
    lines.append("| --- | --- | --- | --- | --- |")
    for algorithm in ALGORITHMS:
        own = [each for each in rows if each.algorithm == algorithm and not each.row.fitted]
        if own:
            measured = np.array([each.row.row.time_us for each in own])
            closed = np.array([each.row.predicted_us for each in own])
            simulated = np.array([each.simulated_us for each in own])
            cells = [_errors(closed / measured), _errors(simulated / measured)]
            low, high = np.quantile(simulated / closed, (0.05, 0.95))
            lines.append(f"| {algorithm} | {len(own)} | {cells[0]} | {cells[1]} | {low:.2f} to {high:.2f} |")
    return [*lines, "", f"{len(rows)} calls, {sum(each.messages for each in rows):,} messages."]


def _errors(ratios: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    errors = np.abs(ratios - 1)
    return f"{percent(float(np.median(errors)))}, {percent(float(np.quantile(errors, 0.9)))}"
