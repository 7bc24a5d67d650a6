"""Measured tables of a folder as models, by family of machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from topocomm import TopocommError
from topocomm.calibration.fit_figures import TableModel
from topocomm.calibration.readers.log_formats import load_log
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.simulation.libraries.library_times import library_named, with_settings

from .machines import Place, place_of


class Family(NamedTuple):
    """Tables of one kind of machine.

    Attributes:
        name: Catalogue system.
        machine: Words of the first source.
        models: One for each table.
        places: Where the ranks of each were.
    """

    name: str
    machine: str
    models: list[TableModel]
    places: list[Place]


class Gathered(NamedTuple):
    """All families, and why tables were left out."""

    families: list[Family]
    left_out: list[str]


def gather(folder: Path) -> Gathered:
    """Return the tables of all files of a folder; a file that cannot be used is named with the reason."""
    families: dict[str, Family] = {}
    left_out = []
    for path in sorted(folder.glob("*.json")):
        try:
            tables = load_log(str(path))
            if not tables:
                left_out.append(f"{path.name}: no rows of times")
            for table in tables:
                if table.suspect is not None:
                    left_out.append(f"{table.name}: suspect: {table.suspect}")
                    continue
                place = place_of(table)
                shape = job_shape(place.topology, place.ranks)
                if table.env.get("NCCL_NVLS_ENABLE") == "0":
                    shape = replace(shape, reduces=False)
                library = with_settings(library_named(table.library, on_device=table.memory == "device"), table.env)
                family = families.setdefault(place.family, Family(place.family, table.machine, [], []))
                model = TableModel(table, shape, library)
                model.predicted_us(table.rows[0], DEFAULTS)
                family.models.append(model)
                family.places.append(place)
        except TopocommError as error:
            left_out.append(str(error))
    return Gathered([family for family in families.values() if family.models], left_out)
