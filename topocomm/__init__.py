"""topocomm: reductions with any associative operator, planned for the machine at hand, proved, and executed."""

from topocomm.errors import (
    DeadlineError,
    MismatchError,
    MissingExtraError,
    OperatorError,
    PlanError,
    RankFailedError,
    TopocommError,
    TopologyError,
)
from topocomm.execute.bootstrap import run_local
from topocomm.execute.communicator import Communicator
from topocomm.execute.executor import PreparedCall
from topocomm.execute.launch import init
from topocomm.operators.builtin import ARGMAX, ARGMIN, BAND, BOR, BXOR, MAX, MIN, PROD, SUM
from topocomm.operators.operator import Field, Kernel, Layout, Operator
from topocomm.planning.plan import Plan
from topocomm.planning.planner import plan
from topocomm.topology.catalog import catalog
from topocomm.topology.discover import discover
from topocomm.topology.model import Device, Link, Pair, Topology
from topocomm.topology.recognise import load

__all__ = [
    "ARGMAX",
    "ARGMIN",
    "BAND",
    "BOR",
    "BXOR",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "Communicator",
    "DeadlineError",
    "Device",
    "Field",
    "Kernel",
    "Layout",
    "Link",
    "MismatchError",
    "MissingExtraError",
    "Operator",
    "OperatorError",
    "Pair",
    "Plan",
    "PlanError",
    "PreparedCall",
    "RankFailedError",
    "TopocommError",
    "Topology",
    "TopologyError",
    "catalog",
    "discover",
    "init",
    "load",
    "plan",
    "run_local",
]
