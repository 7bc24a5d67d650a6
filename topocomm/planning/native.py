"""Comparison of a plan's schedule with a library's own collective, by predicted time.

Where it is made, and where not, is in docs/concepts/cost-models.md, "A library's own collective".
"""

from __future__ import annotations

from dataclasses import replace

from topocomm.operators.builtin import MAX, MIN, PROD, SUM
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator
from topocomm.planning.collectives import CARRYING
from topocomm.planning.cost.cost_models import TIME_DIGITS
from topocomm.planning.libraries.job_shape import JobShape, job_shape
from topocomm.planning.libraries.library_figures import ll128_of, topology_figures
from topocomm.planning.libraries.nccl_choice import Choice
from topocomm.planning.libraries.nccl_times import TunerSettings, chosen_call, payload_share
from topocomm.planning.plan import Native, Plan
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
    shape = shape_of(plan, topology, dtype)
    if shape is None:
        return None
    choice, call_us = call_of(shape, topology, plan.collective.name, plan.payload_bytes)
    # A measured launch time beyond the table's delays the library's call too.
    native_us = round(call_us + max(plan.launch_us - GROUP_LAUNCH_US, 0.0), TIME_DIGITS)
    planned_us, how = as_executed(plan, shape, topology)
    drops_nan = plan.operator in ("max", "min") and plan.collective.name not in CARRYING and "float" in dtype
    why = (
        f"{choice.words} takes {native_us:.2f} us by NCCL's model, the schedule {planned_us:.2f} us {how}; "
        "copies and folds in a GPU's own memory are not counted"
    )
    return Native(
        library="nccl",
        call=CALLS[plan.collective.name],
        dtype=dtype,
        algorithm=choice.words,
        predicted_us=native_us,
        planned_us=planned_us,
        chosen=native_us < planned_us and not drops_nan,
        why=f"{_DROPS_NAN}; {why}" if drops_nan else why,
    )


def shape_of(plan: Plan, topology: Topology, dtype: str) -> JobShape | None:
    """Return the plan's ranks as NCCL sees them; None where they are not on NVIDIA's GPUs, one each."""
    ends = plan.ranks
    on_gpus = all(topology.by_id[end].kind == "gpu" for end in ends)
    amd = any(link.kind.startswith("xgmi") for link in topology.links)
    if len(set(ends)) < len(ends) or len(ends) < 2 or not on_gpus or amd:
        return None
    if not plan.certificate.throughput_upper_bound_gb_per_s:
        return None
    shape = job_shape(topology, ends, alike=False)
    return shape if knows("nvls", plan.operator, [dtype]) else replace(shape, reduces=False)


def call_of(
    shape: JobShape, topology: Topology, collective: str, payload_bytes: int, algorithms: tuple[str, ...] = ()
) -> tuple[Choice, float]:
    """Return what NCCL takes for a call, of these algorithms if it has one of them, and its time in us."""
    figures, ll128 = topology_figures(topology), ll128_of(topology.facts)
    return chosen_call(shape, figures, collective, payload_bytes, TunerSettings(has_ll128=ll128, algorithms=algorithms))


def as_executed(plan: Plan, shape: JobShape, topology: Topology) -> tuple[float, str]:
    """Return the time of a plan's schedule counted as NCCL's calls are, and how that differs from its prediction.

    There is a launch, and payloads get the share of the links' nominal rates that those of NCCL get.
    """
    share = payload_share(shape, topology_figures(topology))
    f, launches_us = plan.figures, plan.launch_us * plan.figures.rounds
    one_launch_us = 0.0 if plan.launch_us else GROUP_LAUNCH_US
    fixed_us = f.alpha_us + launches_us
    planned_us = round(fixed_us + max(f.predicted_us - fixed_us, 0.0) / share + one_launch_us, TIME_DIGITS)
    launch = f"one launch of {one_launch_us:g} us and " if one_launch_us else ""
    return planned_us, f"with {launch}{share:.0%} of the links' rates, as NCCL gets"
