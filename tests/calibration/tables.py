"""Tables that the model itself made, with figures of their own: what a fit must find again."""

from __future__ import annotations

import random

import topocomm
from topocomm.calibration.fit_figures import TableModel
from topocomm.calibration.measured_table import MeasuredRow, MeasuredTable
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.simulation.libraries.library_times import Library

TRUE = {
    **DEFAULTS,
    "nccl.start_us.LL": 9.0,
    "nccl.hop_us.network.LL": 3.0,
    "efficiency.network": 0.7,
    "nccl.channel_gb_per_s.LL": 1.2,
}
"""Figures of the machine of these tables."""


def made_models(*, system="v100-4", hosts=(1, 2, 4, 8), collective="allreduce", noise=0.0, seed=0, library="nccl"):
    """Models of tables of a library on a system, their times made by TRUE, with noise as a share of each time."""
    rng = random.Random(seed)
    models = []
    for count in hosts:
        shape = job_shape(topocomm.catalog(system, hosts=count))
        of = Library(library, (2, 8) if library == "nccl" else (4, 0), library == "nccl")
        truth = of._replace(has_ll128=False)
        empty = MeasuredTable(f"{system}-{count}-{collective}", "made", collective, library, 4 * count, count, ())
        rows = tuple(
            MeasuredRow(
                4**power,
                TableModel(empty, shape, truth).predicted_us(MeasuredRow(4**power, 1.0), TRUE)
                * (1 + noise * (2 * rng.random() - 1)),
            )
            for power in range(1, 14)
        )
        models.append(TableModel(MeasuredTable(**{**empty.__dict__, "rows": rows}), shape, of))
    return models
