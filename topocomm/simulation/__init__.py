"""What a plan, a library's algorithm or a step of a model takes on a machine that is not there."""

from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.schedule_work import of_schedule
from topocomm.planning.cost.simulated_work import NO_TASK, Work, WorkBuilder
from topocomm.planning.cost.timeline import Timeline
from topocomm.simulation.path_back import CriticalPath, Step, critical_path
from topocomm.simulation.protocols import TRANSPORTS, Protocol, Transport, transport, with_protocols
from topocomm.simulation.runs import Rules, Run, algorithms, of_plan, simulate_collective, simulate_plan
from topocomm.simulation.switch_sums import switch_sum
from topocomm.simulation.timeline_words import timeline_document, timeline_text
from topocomm.simulation.trace_events import trace_json
from topocomm.topology.merge.link_rates import with_rates

__all__ = [
    "NO_TASK",
    "TRANSPORTS",
    "CriticalPath",
    "Protocol",
    "Rules",
    "Run",
    "Step",
    "Timeline",
    "Transport",
    "Work",
    "WorkBuilder",
    "algorithms",
    "critical_path",
    "of_plan",
    "of_schedule",
    "simulate",
    "simulate_collective",
    "simulate_plan",
    "switch_sum",
    "timeline_document",
    "timeline_text",
    "trace_json",
    "transport",
    "with_protocols",
    "with_rates",
]
