"""The MSCCL XML of a plan for sums: thread blocks of steps, as RCCL, Azure's executor and microsoft/msccl read them.

Every rank has a thread block per peer and direction on a channel, and one for its local folds and copies. A step waits
for a step of another thread block of its GPU (`depid`, `deps`); `nop` steps before it wait for further ones. Sends and
receives of a pair and channel match in order. `msccl_blocks.py` has the limits of each runtime, cuts a program to them,
and explains why no program can hang.

The runtime cuts long buffers in slices and runs the program for each, so the `repeat` of a pipelined plan is left to
it; it also chooses the routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from topocomm.errors import PlanError
from topocomm.planning.formats.gpu_program import Units, check_exportable, equal_units, program_name
from topocomm.planning.formats.msccl_blocks import (
    MOST_BYTES,
    MOST_ELEMENTS,
    MOST_SCRATCH,
    RUNTIMES,
    Block,
    Line,
    RankBlocks,
    Runtime,
    blocks_of,
    runtime_for,
)
from topocomm.planning.formats.msccl_steps import Program
from topocomm.planning.plan import Plan
from topocomm.planning.schedule.schedule import Schedule
from topocomm.topology.model import Topology

FORM = "msccl-xml"
LL_BYTES = 65536
"""Largest payload for the low-latency protocol, which sends a flag with every 4 bytes."""


def dumps(plan: Plan, topology: Topology, runtime: str | None = None) -> str:
    """Return the plan as MSCCL XML for a runtime of `RUNTIMES`; None takes the one of the machine (`runtime_for`).

    Raises:
        PlanError: The format cannot express the plan, or the program is too large; the message says why.
    """
    reader = runtime_for(topology) if runtime is None else RUNTIMES[runtime]
    check_exportable(plan, topology, FORM)
    schedule, units = equal_units(plan.collective, plan.schedule, FORM)
    name = plan.collective.name
    program, ranks = _fitting(schedule, units, reader)
    channels = 1 + max((block.channel for blocks in ranks for block in blocks.lines), default=0)
    both = reader.says_out_of_place or not units.part
    head = {
        "name": program_name(plan),
        "proto": "LL" if plan.payload_bytes <= LL_BYTES and plan.objective != "throughput" else "Simple",
        "nchannels": channels,
        "nchunksperloop": units.total,
        "ngpus": schedule.ranks,
        "coll": reader.reduce_scatter if name == "reduce_scatter" else name,
        "inplace": int(both),
        "outofplace": 1,
        "minBytes": 0,
        "maxBytes": MOST_BYTES,
    }
    lines = [f"<algo {_attributes(head)}>"]
    for rank, blocks in enumerate(ranks):
        lines += _gpu_lines(units, rank, program.scratch[rank], blocks)
    return "\n".join([*lines, "</algo>"]) + "\n"


def _fitting(schedule: Schedule, units: Units, runtime: Runtime) -> tuple[Program, list[RankBlocks]]:
    """A program within the limits of the runtime.

    Steps that move several chunks are fewer, but one of them may wait for more thread blocks than a thread block has
    steps; so a program with a step for each chunk is tried second.
    """
    reasons = []
    for merged in (True, False):
        program = Program(schedule, units, merged=merged)
        if max(program.scratch) > MOST_SCRATCH:
            raise PlanError(f"{FORM}: {max(program.scratch)} scratch chunks: expected at most {MOST_SCRATCH}")
        ranks = blocks_of(program, runtime)
        if isinstance(ranks, str):
            reasons.append(ranks)
            continue
        elements = 1 + schedule.ranks + max(sum(1 + len(own) for own in blocks.lines.values()) for blocks in ranks)
        if elements <= MOST_ELEMENTS:
            return program, ranks
        reasons.append(f"{elements} XML elements for a rank, it takes {MOST_ELEMENTS} (MAX_NODES of its XML parser)")
    others = " or ".join(f"--runtime {other}" for other in RUNTIMES if other != runtime.name)
    raise PlanError(
        f"{FORM}: {runtime.title}: {reasons[0]}; plan with fewer ranks, another --bytes or --objective, or write it "
        f"for {others}"
    )


def _gpu_lines(units: Units, rank: int, scratch: int, blocks: RankBlocks) -> list[str]:
    sizes = {
        "id": rank,
        "i_chunks": units.input,
        "o_chunks": units.output,
        "s_chunks": scratch,
    }
    numbers = {block: number for number, block in enumerate(blocks.lines)}
    lines = [f"  <gpu {_attributes(sizes)}>"]
    for block, own in blocks.lines.items():
        tb = {"id": numbers[block], "send": block.send, "recv": block.receive, "chan": block.channel}
        lines.append(f"    <tb {_attributes(tb)}>")
        lines += [_step_line(number, line, blocks, numbers) for number, line in enumerate(own)]
        lines.append("    </tb>")
    return [*lines, "  </gpu>"]


def _step_line(number: int, line: Line, blocks: RankBlocks, numbers: Mapping[Block, int]) -> str:
    step, wait = line
    src, dst = (step.src, step.dst) if step else (("i", -1), ("o", -1))
    block, place = blocks.places[wait] if wait else (None, -1)
    entry: dict[str, int | str] = {
        "s": number,
        "type": step.kind if step else "nop",
        "srcbuf": src[0],
        "srcoff": src[1],
        "dstbuf": dst[0],
        "dstoff": dst[1],
        "cnt": step.count if step else 0,
        "depid": numbers[block] if block else -1,
        "deps": place,
        "hasdep": int(step is not None and (step in blocks.awaited or step.ends_run)),
    }
    return f"      <step {_attributes(entry)}/>"


def _attributes(pairs: Mapping[str, int | str]) -> str:
    return " ".join(f"{key}={quoteattr(str(value))}" for key, value in pairs.items())
