"""Comparison of a plan's schedule with a library's own collective, by predicted time.

Where it is made, and where not, is in docs/concepts/cost-models.md, "A library's own collective".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from topocomm.operators.builtin import MAX, MIN, PROD, SUM
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import CARRYING
from topocomm.planning.cost.cost_models import TIME_DIGITS
from topocomm.planning.cost.nccl_model import Nvls, Ranks, times_us
from topocomm.planning.plan import Native, Plan
from topocomm.planning.routing.routes import link_figures
from topocomm.topology.links import GROUP_LAUNCH_US
from topocomm.topology.model import Topology
from topocomm.topology.network.in_network import knows

CALLS = {"allreduce": "ncclAllReduce", "reduce_scatter": "ncclReduceScatter", "allgather": "ncclAllGather"}
OPERATORS = (SUM, PROD, MAX, MIN)
DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64")
"""Dtypes that NCCL reduces."""
_DROPS_NAN = "NCCL's max and min of floats drop NaN, topocomm's keep it"


def with_native(plan: Plan, topology: Topology, operator: Operator, layout: Layout) -> Plan:
    """Return the plan with the time of the library's call, if there is one; `layout` is of the whole payload."""
    name = plan.collective.name
    if plan.objective != "auto" or plan.order != "any" or not plan.payload_bytes or len(layout.fields) != 1:
        return plan
    dtype = str(layout.fields[0].dtype)
    reduced = operator in OPERATORS and dtype in DTYPES
    if name not in CALLS or len(set(plan.collective.parts)) > 1 or not (name in CARRYING or reduced):
        return plan
    native = native_of(plan, topology, dtype)
    return plan if native is None else replace(plan, native=native)


def native_of(plan: Plan, topology: Topology, dtype: str) -> Native | None:
    """Return the library's call for one array of a dtype; None where there is none on this machine."""
    ranks = communicator_of(plan, topology, dtype)
    if ranks is None:
        return None
    times = times_us(plan.collective.name, ranks, plan.payload_bytes)
    algorithm = min(times, key=lambda name: (times[name], name))
    # A measured launch time beyond the table's delays the library's call too.
    native_us = round(times[algorithm] + max(plan.launch_us - GROUP_LAUNCH_US, 0.0), TIME_DIGITS)
    one_launch_us = 0.0 if plan.launch_us else GROUP_LAUNCH_US
    planned_us = round(plan.figures.predicted_us + one_launch_us, TIME_DIGITS)
    launch = f" with one launch of {one_launch_us:g} us" if one_launch_us else ""
    drops_nan = plan.operator in ("max", "min") and plan.collective.name not in CARRYING and "float" in dtype
    why = (
        f"{algorithm} takes {native_us:.2f} us by the model of NCCL 2.30, the schedule {planned_us:.2f} us{launch}, "
        "its copies and folds in a GPU's own memory not counted"
    )
    return Native(
        library="nccl",
        call=CALLS[plan.collective.name],
        dtype=dtype,
        algorithm=algorithm,
        predicted_us=native_us,
        planned_us=planned_us,
        chosen=native_us < planned_us and not drops_nan,
        why=f"{_DROPS_NAN}; {why}" if drops_nan else why,
    )


def communicator_of(plan: Plan, topology: Topology, dtype: str) -> Ranks | None:
    """The plan's ranks for NCCL's model; None where they are not on NVIDIA's GPUs, one each."""
    ends, most = plan.ranks, plan.certificate.throughput_upper_bound_gb_per_s
    on_gpus = all(topology.by_id[end].kind == "gpu" for end in ends)
    amd = any(link.kind.startswith("xgmi") for link in topology.links)
    if len(set(ends)) < len(ends) or len(ends) < 2 or not on_gpus or amd or not most:
        return None
    fabric = [
        (link.src, link.dst)
        for link in topology.links
        if link.kind == "nvlink" and all(topology.by_id[end].kind != "nic" for end in link[:2])
    ]
    by_fabric = _joined(fabric)
    hosts = {end: f"host {topology.by_id[end].host}" for end in topology.endpoints}
    by_node = _joined([*fabric, *hosts.items()])
    nodes: dict[str, list[str]] = {}
    for end in ends:
        nodes.setdefault(by_node.get(end, end), []).append(end)
    nvlink = all(len({by_fabric.get(end, end) for end in node}) == 1 for node in nodes.values())
    sharp = plan.collective.name == "allreduce" and knows("nvls", plan.operator, [dtype])
    nvls = _nvls(topology, list(nodes.values())) if sharp else None
    return Ranks(len(ends), len(nodes), nvlink, most, nvls)


def _joined(edges: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The connected component of each node, named by one of its nodes."""
    components: dict[str, set[str]] = {}
    for a, b in edges:
        small, large = sorted((components.setdefault(a, {a}), components.setdefault(b, {b})), key=len)
        if small is not large:
            large |= small
            components.update(dict.fromkeys(small, large))
    return {node: min(own) for node, own in components.items()}


def _nvls(topology: Topology, nodes: Sequence[Sequence[str]]) -> Nvls | None:
    """NVLink SHARP between these nodes; None where no such switch joins all ranks of a node."""
    figures, _ = link_figures(topology)
    switches = {device.id for device in topology.devices if device.in_network == "nvls"}
    beside: dict[str, list[str]] = {}
    for src, dst in figures:
        if dst in switches:
            beside.setdefault(src, []).append(dst)
    inside = []
    for node in nodes:
        stars = [[(end, s) for end in node] + [(s, end) for end in node] for s in beside.get(node[0], ())]
        complete = [edges for edges in stars if all(edge in figures for edge in edges)]
        if len(node) < 2 or not complete:
            return None
        inside.append(min(figures[edge].gb_per_s for edge in complete[0]))
    if len(nodes) == 1:
        return Nvls(inside[0], 0.0)
    node_of = {topology.by_id[end].host: number for number, node in enumerate(nodes) for end in node}
    out = [0.0] * len(nodes)
    for (src, dst), figure in figures.items():
        number = node_of.get(topology.by_id[src].host)
        if number is not None and node_of.get(topology.by_id[dst].host) != number and dst not in switches:
            out[number] += figure.gb_per_s
    return Nvls(min(inside), min(out)) if min(out) else None
