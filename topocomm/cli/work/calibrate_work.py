"""A machine's figures, fitted to logs of benchmarks, and how far predictions are off, as `topocomm calibrate` says."""

from __future__ import annotations

import argparse
import json
from typing import Any

from topocomm.calibration.error_report import RowError, error_table, row_errors, summary, text, worst
from topocomm.calibration.fit_figures import Fit, TableModel, fit_tables
from topocomm.calibration.measured_table import MeasuredTable
from topocomm.calibration.measured_topology import with_figures
from topocomm.calibration.readers.log_formats import load_log
from topocomm.cli.terminal.output import write_result, write_text
from topocomm.cli.terminal.progress_line import ProgressLine
from topocomm.errors import PlanError, TopologyError
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import FACT, TABLE, topology_figures
from topocomm.simulation.libraries.library_times import library_named, with_settings
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.model import Topology
from topocomm.topology.readers.plain import topology_json
from topocomm.topology.recognise import load


def write_calibration(args: argparse.Namespace) -> None:
    """Fit, report, and write the topology.

    Raises:
        TopologyError: A log or the topology is unusable, or does not fit the machine.
        PlanError: No table can be fitted.
        OSError: The output cannot be written.
    """
    tables = [table for path in args.input for table in load_log(path, ranks=args.ranks)]
    if not tables:
        raise TopologyError(f"--input {' '.join(args.input)}: no rows of times in these files")
    topology = _machine(args, tables)
    if FACT in topology.facts:
        raise TopologyError(
            f"--topology {args.topology}: calibrated already; give the topology with nominal figures, and all logs"
        )
    models = [_model(args, topology, table) for table in tables]
    with ProgressLine(f"fitting {sum(len(table.rows) for table in tables)} rows"):
        fit = fit_tables(models, every_row=args.all_rows, base=topology_figures(topology))
        errors = row_errors(models, fit)
    if args.output is not None:
        write_result(topology_json.dumps(with_figures(topology, fit)), args.output)
    if args.format == "json":
        write_result(_document(fit, errors, args), None)
    else:
        write_text(_words(fit, errors, args))


def _machine(args: argparse.Namespace, tables: list[MeasuredTable]) -> Topology:
    if args.topology is not None:
        return load(args.topology)
    return catalog(args.system, hosts=max(table.hosts or args.hosts or 1 for table in tables))


def _model(args: argparse.Namespace, topology: Topology, table: MeasuredTable) -> TableModel:
    """The table with its ranks on the first hosts of the machine, as many on each."""
    if args.system is not None:
        topology = catalog(args.system, hosts=table.hosts or args.hosts or 1)
    ends: dict[str, list[str]] = {}
    for end in topology.endpoints:
        ends.setdefault(topology.by_id[end].host, []).append(end)
    ranks = table.ranks or args.ranks or len(topology.endpoints)
    hosts = table.hosts or args.hosts or (len(ends) if ranks > len(next(iter(ends.values()))) else 1)
    per_host, left = divmod(ranks, hosts)
    groups = list(ends.values())[:hosts]
    if left or len(groups) < hosts or any(len(own) < per_host for own in groups):
        sizes = ", ".join(f"{name}: {len(own)}" for name, own in ends.items())
        raise TopologyError(
            f"{table.source}: {ranks} ranks on {hosts} hosts; topology {topology.name!r} has {sizes}; give the machine "
            "of the log, or --hosts and --ranks where the log does not say them"
        )
    chosen = tuple(end for own in groups for end in own[:per_host])
    try:
        shape = job_shape(topology, chosen)
    except PlanError as error:
        raise TopologyError(f"{table.source}: {error}") from None
    library = with_settings(library_named(table.library, on_device=table.memory == "device"), table.env)
    return TableModel(table, shape, library)


def _words(fit: Fit, errors: list[RowError], args: argparse.Namespace) -> str:
    rest = [each for each in errors if not each.fitted] if not args.all_rows else errors
    scored = "all rows, which were fitted" if args.all_rows else "rows that were not fitted"
    names = [
        f"  {name:34} {fit.figures[name]:10.4g}  {TABLE[name].value:8.4g}  {TABLE[name].meaning}" for name in fit.fitted
    ]
    parts = [
        f"{fit.rows} of {len(errors)} rows fitted; relative errors of {scored}:",
        text([*error_table(rest), summary("all", "all", rest)]) if rest else "  there are none",
        "",
        "figure                                  fitted   default",
        *names,
    ]
    if fit.has_ll128 is not None:
        parts.append(f"NCCL's LL128 {'is' if fit.has_ll128 else 'is not'} in use: so the rows fit better")
    parts += ["", "furthest off:"]
    parts += [
        f"  {each.model.table.name}: {each.row.payload_bytes} bytes measured {each.row.time_us:.4g} us, predicted "
        f"{each.predicted_us:.4g} us"
        for each in worst(errors, 5)
    ]
    parts += [
        warning for each in {e.model.table.name: e.model.table for e in errors}.values() for warning in each.warnings
    ]
    return "\n".join(parts) + "\n"


def _document(fit: Fit, errors: list[RowError], args: argparse.Namespace) -> str:
    rest = [each for each in errors if not each.fitted] if not args.all_rows else errors
    document: dict[str, Any] = {
        "schema": "topocomm.calibration/1",
        "rows_fitted": fit.rows,
        "rows": len(errors),
        "figures": {name: fit.figures[name] for name in fit.fitted},
        "has_ll128": fit.has_ll128,
        "errors": [row._asdict() for row in error_table(rest)],
        "predictions": [
            {
                "table": each.model.table.name,
                "collective": each.model.table.collective,
                "payload_bytes": each.row.payload_bytes,
                "measured_us": each.row.time_us,
                "predicted_us": round(each.predicted_us, 3),
                "fitted": each.fitted or args.all_rows,
            }
            for each in errors
        ],
    }
    return json.dumps(document, indent=1) + "\n"
