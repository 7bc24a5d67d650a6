"""The plan JSON `topocomm.plan/1`: written canonically, read with every figure checked.

A plan that was altered anywhere fails its digest; one whose digest was recomputed still has its schedule proved
again before it is returned, and the proof and figures that can be recomputed from it alone must agree.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from topocomm.errors import PlanError
from topocomm.planning.collectives import Collective
from topocomm.planning.plan import Certificate, Plan, PlanFigures
from topocomm.planning.schedule import Combine, Schedule, Transfer, make_schedule
from topocomm.planning.verify import Proof, verify

SCHEMA = "topocomm.plan/1"


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, in the order of the format, with its digest missing."""
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
        **asdict(plan.figures),
        "proof": asdict(plan.proof),
        "certificate": asdict(plan.certificate),
        "assumed": list(plan.assumed),
        "schedule": schedule_document(plan.schedule),
    }


def plan_digest(document: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON (sorted keys, no spaces) of a document without its digest."""
    plain = {key: value for key, value in document.items() if key != "digest"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def dumps(plan: Plan) -> str:
    """The plan as one JSON document."""
    document = plan_document(plan)
    return json.dumps({"schema": SCHEMA, "digest": plan.digest, **document})


def save(plan: Plan, path: Path) -> None:
    """Write the plan; a reader never sees half of it."""
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    try:
        part.write_text(dumps(plan) + "\n")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot save the plan: {error.strerror}", str(path)) from None


def load(path: Path) -> Plan:
    """Read, check and prove a plan file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise PlanError(f"{path}: cannot read the plan: {reason}") from None
    return loads(text, str(path))


def loads(text: str, name: str = "plan") -> Plan:
    """A plan from JSON text; `name` stands for the file in messages.

    Raises:
        PlanError: The text is no plan JSON, was altered, or its schedule does not compute what it says.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise PlanError(f"{name}: not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise PlanError(f"{name}: expected a document of schema {SCHEMA!r}, found {found!r}")
    if document.get("digest") != plan_digest(document):
        raise PlanError(f"{name}: digest does not fit the content: the plan was altered or cut; plan again")
    try:
        plan = _read(document)
    except PlanError as error:
        raise PlanError(f"{name}: {error}") from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise PlanError(f"{name}: malformed plan: {type(error).__name__}: {error}") from None
    return plan


def schedule_document(schedule: Schedule) -> dict[str, Any]:
    """The schedule as plain lists."""
    rounds: list[dict[str, list[Any]]] = [{"transfers": [], "combines": []} for _ in range(schedule.rounds)]
    for move in schedule.transfer_list():
        entry = list(move[1:6]) if move.path < 0 else list(move[1:])
        rounds[move.round]["transfers"].append(entry)
    for fold in schedule.combine_list():
        rounds[fold.round]["combines"].append([fold.rank, fold.out_slot, list(fold.operands), fold.chunk])
    return {
        "chunks": [list(chunk) for chunk in schedule.chunks],
        **({"nodes": [list(node) for node in schedule.nodes]} if schedule.nodes else {}),
        "inputs": schedule.inputs.tolist(),
        "outputs": schedule.outputs.tolist(),
        "rounds": rounds,
        "paths": [list(path) for path in schedule.paths],
        "repeat": None,
    }


def read_schedule(document: dict[str, Any], collective: Collective) -> Schedule:
    """The schedule of a plan document; entries are converted, nothing is proved here.

    Raises:
        PlanError: An entry is no integer, or a chunk of an allgather is within no rank's part.
    """
    transfers, combines = [], []
    for index, round_ in enumerate(document["rounds"]):
        transfers += [Transfer(index, *(_integer(item) for item in entry)) for entry in round_["transfers"]]
        for rank, out_slot, operands, chunk in round_["combines"]:
            slots = tuple(_integer(slot) for slot in operands)
            combines.append(Combine(index, _integer(rank), _integer(out_slot), _integer(chunk), slots))
    if document["repeat"] is not None:
        raise PlanError(f"repeat {document['repeat']!r}: pipelined schedules cannot be proved yet; plan without")
    chunks = [(_integer(first), _integer(rows)) for first, rows in document["chunks"]]
    return make_schedule(
        collective.ranks,
        chunks,
        inputs=document["inputs"],
        outputs=document["outputs"],
        transfers=transfers,
        combines=combines,
        paths=document["paths"],
        owners=collective.owners(chunks) if collective.name == "allgather" else (),
        nodes=[(_integer(low), _integer(high)) for low, high in document.get("nodes", ())],
    )


def _read(document: dict[str, Any]) -> Plan:
    ranks = tuple(document["ranks"])
    collective = _read_collective(document, len(ranks))
    schedule = read_schedule(document["schedule"], collective)
    proof = Proof(**document["proof"])
    serialised = document["objective"] != "rounds"
    proved = verify(schedule, collective, endpoints=ranks, ports=_integer(document["ports"]), serialised=serialised)
    without_machine = [f.name for f in fields(Proof) if f.name != "links_exist"]
    for part in without_machine:
        if getattr(proved, part) != getattr(proof, part):
            raise PlanError(f"proof.{part} is {getattr(proof, part)}, the schedule proves {getattr(proved, part)}")
    figures = PlanFigures(**{f.name: document[f.name] for f in fields(PlanFigures)})
    certificate = _read_certificate(document["certificate"])
    for part, number in {**asdict(figures), **document["certificate"]}.items():
        if part in _IN_WORDS:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float | None):
            raise PlanError(f"{part}: expected a number, got {number!r}")
    _check_figures(figures, schedule, _integer(document["payload_bytes"]))
    return Plan(
        collective=collective,
        operator=document["operator"],
        order=document["order"],
        objective=document["objective"],
        topology_digest=document["topology_digest"],
        ranks=ranks,
        payload_bytes=document["payload_bytes"],
        algorithm=document["algorithm"],
        ports=document["ports"],
        port_model=document["port_model"],
        figures=figures,
        proof=proof,
        certificate=certificate,
        schedule=schedule,
        assumed=tuple(document["assumed"]),
    )


_IN_WORDS = ("argument", "witness", "other_witnesses")
"""Parts of a certificate that are no numbers."""


def _read_certificate(document: dict[str, Any]) -> Certificate:
    """The certificate; what its witnesses say is checked where the topology is at hand (`check_certificate`)."""
    if "witness" not in document:
        raise PlanError("certificate.witness is missing: the file is of a version without witnesses; plan again")
    others = document["other_witnesses"]
    if not all(isinstance(one, dict) for one in (document["witness"], *others)):
        raise PlanError(f"certificate: expected witnesses that are objects, got {document['witness']!r} and {others!r}")
    return Certificate(**{**document, "other_witnesses": tuple(others)})


def _read_collective(document: dict[str, Any], ranks: int) -> Collective:
    parts, shards = (tuple(_integer(item) for item in document.get(key, ())) for key in ("parts", "shards"))
    order = document["order"]
    if order != ("canonical" if shards else "any"):
        raise PlanError(f"order {order!r} with {len(shards)} shards: canonical order has shards, any order has none")
    return Collective(document["collective"], ranks, _integer(document["root"]), parts, shards)


def _check_figures(figures: PlanFigures, schedule: Schedule, payload_bytes: int) -> None:
    """The figures that a schedule and a payload determine."""
    if payload_bytes < 0 or payload_bytes % max(schedule.rows, 1):
        raise PlanError(f"payload_bytes {payload_bytes} is no multiple of the {schedule.rows} rows")
    row_bytes = payload_bytes // max(schedule.rows, 1)
    moves = schedule.transfer_list()
    counted = {
        "rounds": len({move.round for move in moves}),
        "transfers": len({(move.round, move.src, move.dst, move.path) for move in moves}),
        "wire_bytes": sum(schedule.chunks[move.chunk][1] for move in moves) * row_bytes,
    }
    for part, number in counted.items():
        if getattr(figures, part) != number:
            raise PlanError(f"{part} is {getattr(figures, part)!r}, the schedule has {number}")


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise PlanError(f"expected an integer, got {value!r}")
    return value
