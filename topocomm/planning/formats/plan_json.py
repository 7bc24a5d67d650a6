"""The plan JSON `topocomm.plan/1`: written canonically, read with every figure checked.

An altered plan fails its digest. The schedule of a plan that is read is proved again, and the proof and figures that
follow from the schedule alone must agree.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from topocomm.errors import PlanError
from topocomm.planning.collectives import COLLECTIVES, Collective
from topocomm.planning.formats.checked import (
    LARGEST,
    Json,
    Whole,
    a_figure,
    a_record,
    a_text,
    an_object,
    each,
    entry,
    one_of,
)
from topocomm.planning.formats.schedule_json import MOST_ROWS, compact_json, read_schedule, schedule_text
from topocomm.planning.plan_fields import OBJECTIVES, PORT_MODELS, AsSum, Certificate, Native, PlanFields, PlanFigures
from topocomm.planning.proof.verify import Proof, verify
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.traffic import count_messages, rows_sent
from topocomm.topology.readers.plain import strict_json

SCHEMA = "topocomm.plan/1"


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause Python's cycle collector: with a million lists without cycles it takes half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def plan_document(plan: PlanFields) -> dict[str, Any]:
    """Return the plan but its schedule as plain data, in the order of the format, without its digest."""
    collective = plan.collective
    return {
        "schema": SCHEMA,
        "topology_digest": plan.topology_digest,
        "collective": collective.name,
        "root": collective.root,
        **({"parts": list(collective.parts)} if collective.parts else {}),
        **({"shards": list(collective.shards)} if collective.shards else {}),
        "operator": plan.operator,
        "order": plan.order,
        "objective": plan.objective,
        "ranks": list(plan.ranks),
        "payload_bytes": plan.payload_bytes,
        "algorithm": plan.algorithm,
        "ports": plan.ports,
        "port_model": plan.port_model,
        **({"launch_us": plan.launch_us} if plan.launch_us else {}),
        **asdict(plan.figures),
        "proof": asdict(plan.proof),
        "certificate": {k: v for k, v in asdict(plan.certificate).items() if v or k not in _WHERE_KNOWN},
        "assumed": list(plan.assumed),
        **({"native": asdict(plan.native)} if plan.native is not None else {}),
        **({"sum": asdict(plan.as_sum)} if plan.as_sum is not None else {}),
    }


_WHERE_KNOWN = ("predicted_lower_bound_us", "proved_by_search")
"""Fields of a certificate that other plans lack."""


def digest_of(plan: PlanFields) -> str:
    """Return the digest of the document of a plan."""
    return _digest(_plan_entries(plan))


def plan_digest(document: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON (sorted keys, no spaces) of a document without its digest."""
    return _digest(_entries(document))


@no_collection()
def dumps(plan: PlanFields) -> str:
    """Return the plan as one JSON document."""
    entries = _plan_entries(plan)
    ordered = {"schema": entries["schema"], "digest": json.dumps(_digest(entries)), **entries}
    return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in ordered.items()) + "}"


def save(plan: PlanFields, path: Path) -> None:
    """Write the plan, atomically."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        part.write_text(dumps(plan) + "\n")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise OSError(error.errno, f"cannot save the plan: {error.strerror}", str(path)) from None


def load(path: Path) -> PlanFields:
    """Read, check and prove a plan file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise PlanError(f"{path}: cannot read the plan: {reason}") from None
    return loads(text, str(path))


@no_collection()
def loads(text: str, name: str = "plan") -> PlanFields:
    """Return the plan of a JSON text; `name` is the file's in messages.

    Raises:
        PlanError: The text is no plan JSON, was altered, or its schedule does not compute its collective.
    """
    try:
        document = strict_json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{name}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        schema = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise PlanError(f"{name}: expected a document of schema {SCHEMA!r}, found {schema!r}")
    if document.get("digest") != plan_digest(document):
        raise PlanError(f"{name}: digest does not fit the content: the plan was altered or cut; plan again")
    try:
        return _read(document)
    except PlanError as error:
        raise PlanError(f"{name}: {error}") from None


def _plan_entries(plan: PlanFields) -> dict[str, str]:
    """The canonical JSON of every entry of a plan's document, made once for the digest and the file."""
    return _entries(plan_document(plan)) | {"schedule": schedule_text(plan.schedule)}


def _entries(document: dict[str, Any]) -> dict[str, str]:
    """The canonical JSON of every entry but the digest."""
    return {key: compact_json(value) for key, value in document.items() if key != "digest"}


def _digest(entries: dict[str, str]) -> str:
    canonical = "{" + ",".join(f"{json.dumps(key)}:{entries[key]}" for key in sorted(entries)) + "}"
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read(document: dict[str, Json]) -> PlanFields:
    ranks = entry(document, "ranks", each(a_text))
    collective = _read_collective(document, len(ranks))
    ports = entry(document, "ports", Whole("a number of ports", max(len(ranks) - 1, 1), 1))
    objective = entry(document, "objective", one_of(OBJECTIVES))
    schedule = read_schedule(entry(document, "schedule", an_object), collective)
    proof = entry(document, "proof", partial(a_record, Proof))
    proved = verify(schedule, collective, endpoints=ranks, ports=ports, serialised=objective != "rounds")
    for part in (f.name for f in fields(Proof) if f.name != "links_exist"):
        if getattr(proved, part) != getattr(proof, part):
            raise PlanError(f"proof.{part} is {getattr(proof, part)}, the schedule proves {getattr(proved, part)}")
    figures = a_record(PlanFigures, document, "", others=True)
    payload_bytes = entry(document, "payload_bytes", Whole("bytes", MOST_ROWS))
    _check_figures(figures, schedule, payload_bytes, collective.counted(schedule.rows))
    plan = PlanFields(
        collective=collective,
        operator=entry(document, "operator", a_text),
        order=collective.order,
        objective=objective,
        topology_digest=entry(document, "topology_digest", a_text),
        ranks=ranks,
        payload_bytes=payload_bytes,
        algorithm=entry(document, "algorithm", a_text),
        ports=ports,
        port_model=entry(document, "port_model", one_of(PORT_MODELS)),
        figures=figures,
        proof=proof,
        certificate=entry(document, "certificate", partial(a_record, Certificate)),
        schedule=schedule,
        assumed=entry(document, "assumed", each(a_text)),
        launch_us=a_figure(document.get("launch_us", 0.0), "launch_us"),
        native=entry(document, "native", partial(a_record, Native)) if "native" in document else None,
        as_sum=entry(document, "sum", partial(a_record, AsSum)) if "sum" in document else None,
    )
    native = plan.native
    if native is not None and native.chosen and not native.predicted_us < native.planned_us:
        raise PlanError(
            f"native.chosen is true with {native.predicted_us} us against {native.planned_us} us; expected less"
        )
    return plan


def _read_collective(document: dict[str, Json], ranks: int) -> Collective:
    parts = each(Whole("a number of rows", MOST_ROWS))(document.get("parts", []), "parts")
    shards = each(Whole("a virtual shard", LARGEST))(document.get("shards", []), "shards")
    order = entry(document, "order", lambda value, _: value)
    if order != ("canonical" if shards else "any"):
        raise PlanError(f"order {order!r} with {len(shards)} shards: canonical order has shards, any order has none")
    name = entry(document, "collective", one_of(COLLECTIVES))
    root = entry(document, "root", Whole("a rank", max(ranks - 1, 0)))
    return Collective(name, ranks, root, parts, shards)


def _check_figures(figures: PlanFigures, schedule: Schedule, payload_bytes: int, rows: int) -> None:
    """Check the figures that follow from a schedule and a payload; of a pipeline, over all its slices."""
    if payload_bytes % max(rows, 1):
        raise PlanError(f"payload_bytes {payload_bytes} is no multiple of the {rows} rows")
    row_bytes = payload_bytes // max(rows, 1)
    rounds, messages = count_messages(schedule)
    counted = {"rounds": rounds, "transfers": messages, "wire_bytes": rows_sent(schedule) * row_bytes}
    for part, number in counted.items():
        if getattr(figures, part) != number:
            raise PlanError(f"{part} is {getattr(figures, part)!r}, the schedule has {number}")
