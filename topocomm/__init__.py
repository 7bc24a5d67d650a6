"""topocomm: reductions with any associative operator, planned for the machine at hand, proved, and executed."""

from typing import Any

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
from topocomm.execute.calls.handle import Handle
from topocomm.execute.calls.prepared_call import PreparedCall
from topocomm.execute.communicator import Communicator
from topocomm.execute.measure.ping_pong import measure
from topocomm.execute.start import discover, init, run_local
from topocomm.operators.builtin import (
    AFFINE,
    AFFINE_MATRIX,
    ARGMAX,
    ARGMIN,
    BAND,
    BOR,
    BXOR,
    LOGADDEXP,
    MAX,
    MIN,
    PROD,
    SUM,
    TOPK,
    WELFORD,
    topk_value,
)
from topocomm.operators.kernels.gpu import bind_device_fold, bind_device_folds
from topocomm.operators.laws import LawReport, check_laws
from topocomm.operators.layout import Field, Layout
from topocomm.operators.operator import Kernel, Operator, TritonCombine
from topocomm.operators.row_kernels import row_kernel
from topocomm.planning.certificate_checker.check_certificate import check_certificate
from topocomm.planning.plan import Plan
from topocomm.planning.planner import plan
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.model import Device, Link, Pair, Topology
from topocomm.topology.recognise import load

__all__ = [
    "AFFINE",
    "AFFINE_MATRIX",
    "ARGMAX",
    "ARGMIN",
    "BAND",
    "BOR",
    "BXOR",
    "LOGADDEXP",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "TOPK",
    "WELFORD",
    "Communicator",
    "DeadlineError",
    "Device",
    "Field",
    "Handle",
    "Kernel",
    "LawReport",
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
    "TritonCombine",
    "bind_device_fold",
    "bind_device_folds",
    "catalog",
    "check_certificate",
    "check_laws",
    "discover",
    "init",
    "load",
    "measure",
    "plan",
    "row_kernel",
    "run_local",
    "topk_value",
]


def __getattr__(name: str) -> Any:
    """Return `__version__`, as it stands in the metadata of the installed distribution: pyproject.toml has it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("topocomm")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
