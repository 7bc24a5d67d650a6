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
from contextlib import contextmanager
from dataclasses import asdict, fields
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
    a_whole,
    entry,
    one_of,
    texts,
    wholes,
)
from topocomm.planning.formats.schedule_json import MOST_ROWS, read_schedule, schedule_document
from topocomm.planning.plan_fields import OBJECTIVES, PORT_MODELS, Certificate, Native, PlanFields, PlanFigures
from topocomm.planning.proof.verify import Proof, verify
from topocomm.planning.schedule.schedule import Schedule
from topocomm.planning.schedule.traffic import count_messages, rows_sent
from topocomm.topology.readers.plain import strict_json

SCHEMA = "topocomm.plan/1"


def plan_document(plan: PlanFields) -> dict[str, Any]:
    """Return the plan as plain data, in the order of the format, without its digest."""
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
        "certificate": _certificate(plan),
        "assumed": list(plan.assumed),
        **({"native": asdict(plan.native)} if plan.native is not None else {}),
        "schedule": schedule_document(plan.schedule),
    }


def plan_digest(document: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON (sorted keys, no spaces) of a document without its digest."""
    return _digest(_entries(document))


def dumps(plan: PlanFields) -> str:
    """Return the plan as one JSON document."""
    with _no_collection():
        entries = _entries(plan_document(plan))
    ordered = {"schema": entries["schema"], "digest": json.dumps(_digest(entries)), **entries}
    return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in ordered.items()) + "}"


def save(plan: PlanFields, path: Path) -> None:
    """Write the plan, atomically."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        part.write_text(dumps(plan) + "\n")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot save the plan: {error.strerror}", str(path)) from None


def load(path: Path) -> PlanFields:
    """Read, check and prove a plan file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise PlanError(f"{path}: cannot read the plan: {reason}") from None
    return loads(text, str(path))


def loads(text: str, name: str = "plan") -> PlanFields:
    """Return the plan of a JSON text; `name` is the file's in messages.

    Raises:
        PlanError: The text is no plan JSON, was altered, or its schedule does not compute its collective.
    """
    with _no_collection():
        return _loads(text, name)


def _loads(text: str, name: str) -> PlanFields:
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


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause Python's cycle collector: with a million lists without cycles it takes half of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _entries(document: dict[str, Any]) -> dict[str, str]:
    """The canonical JSON of every entry but the digest, made once for the digest and the file."""
    return {
        key: json.dumps(value, sort_keys=True, separators=(",", ":"), check_circular=False)
        for key, value in document.items()
        if key != "digest"
    }


def _digest(entries: dict[str, str]) -> str:
    canonical = "{" + ",".join(f"{json.dumps(key)}:{entries[key]}" for key in sorted(entries)) + "}"
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read(document: dict[str, Json]) -> PlanFields:
    ranks = texts(entry(document, "ranks"), "ranks")
    collective = _read_collective(document, len(ranks))
    ports = a_whole(entry(document, "ports"), Whole("a number of ports", max(len(ranks) - 1, 1), 1), "ports")
    objective = one_of(entry(document, "objective"), OBJECTIVES, "objective")
    schedule = read_schedule(entry(document, "schedule"), collective)
    proof = a_record(Proof, entry(document, "proof"), "proof")
    proved = verify(schedule, collective, endpoints=ranks, ports=ports, serialised=objective != "rounds")
    for part in (f.name for f in fields(Proof) if f.name != "links_exist"):
        if getattr(proved, part) != getattr(proof, part):
            raise PlanError(f"proof.{part} is {getattr(proof, part)}, the schedule proves {getattr(proved, part)}")
    figures = a_record(PlanFigures, document, "", others=True)
    payload_bytes = a_whole(entry(document, "payload_bytes"), Whole("bytes", MOST_ROWS), "payload_bytes")
    _check_figures(figures, schedule, payload_bytes)
    return PlanFields(
        collective=collective,
        operator=a_text(entry(document, "operator"), "operator"),
        order=collective.order,
        objective=objective,
        topology_digest=a_text(entry(document, "topology_digest"), "topology_digest"),
        ranks=ranks,
        payload_bytes=payload_bytes,
        algorithm=a_text(entry(document, "algorithm"), "algorithm"),
        ports=ports,
        port_model=one_of(entry(document, "port_model"), PORT_MODELS, "port_model"),
        figures=figures,
        proof=proof,
        certificate=a_record(Certificate, entry(document, "certificate"), "certificate"),
        schedule=schedule,
        assumed=texts(entry(document, "assumed"), "assumed"),
        launch_us=a_figure(document.get("launch_us", 0.0), "launch_us"),
        native=_read_native(document),
    )


def _read_native(document: dict[str, Json]) -> Native | None:
    """The library's collective beside the schedule; chosen only where it is predicted to take less."""
    if "native" not in document:
        return None
    native = a_record(Native, document["native"], "native")
    if native.chosen and not native.predicted_us < native.planned_us:
        raise PlanError(
            f"native.chosen is true with {native.predicted_us} us against {native.planned_us} us; expected less"
        )
    return native


def _certificate(plan: PlanFields) -> dict[str, Any]:
    """The certificate, without an empty `proved_by_search`."""
    document = asdict(plan.certificate)
    if not plan.certificate.proved_by_search:
        del document["proved_by_search"]
    return document


def _read_collective(document: dict[str, Json], ranks: int) -> Collective:
    parts = wholes(document.get("parts", []), Whole("a number of rows", MOST_ROWS), "parts")
    shards = wholes(document.get("shards", []), Whole("a virtual shard", LARGEST), "shards")
    order = entry(document, "order")
    if order != ("canonical" if shards else "any"):
        raise PlanError(f"order {order!r} with {len(shards)} shards: canonical order has shards, any order has none")
    name = one_of(entry(document, "collective"), COLLECTIVES, "collective")
    root = a_whole(entry(document, "root"), Whole("a rank", max(ranks - 1, 0)), "root")
    return Collective(name, ranks, root, parts, shards)


def _check_figures(figures: PlanFigures, schedule: Schedule, payload_bytes: int) -> None:
    """Check the figures that follow from a schedule and a payload; of a pipeline, over all its slices."""
    if payload_bytes % max(schedule.rows, 1):
        raise PlanError(f"payload_bytes {payload_bytes} is no multiple of the {schedule.rows} rows")
    row_bytes = payload_bytes // max(schedule.rows, 1)
    rounds, messages = count_messages(schedule)
    counted = {"rounds": rounds, "transfers": messages, "wire_bytes": rows_sent(schedule) * row_bytes}
    for part, number in counted.items():
        if getattr(figures, part) != number:
            raise PlanError(f"{part} is {getattr(figures, part)!r}, the schedule has {number}")
