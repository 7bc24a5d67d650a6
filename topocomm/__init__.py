"""topocomm: reductions with any associative operator, planned for the machine at hand, proved, and executed.

Each name is imported at its first use, so that `topocomm --help` need not load what plans and executes.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topocomm.early_errors import show_with_rank

if TYPE_CHECKING:
    __version__: str
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
    from topocomm.operators.law_report import LawReport
    from topocomm.operators.laws import check_laws
    from topocomm.operators.layout import Arrays, Field, Layout
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
    "Arrays",
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

_HOMES = {
    name: f"topocomm.{module}"
    for module, names in {
        "errors": "DeadlineError MismatchError MissingExtraError OperatorError PlanError RankFailedError TopocommError "
        "TopologyError",
        "execute.calls.handle": "Handle",
        "execute.calls.prepared_call": "PreparedCall",
        "execute.communicator": "Communicator",
        "execute.measure.ping_pong": "measure",
        "execute.start": "discover init run_local",
        "operators.builtin": "AFFINE AFFINE_MATRIX ARGMAX ARGMIN BAND BOR BXOR LOGADDEXP MAX MIN PROD SUM TOPK WELFORD "
        "topk_value",
        "operators.kernels.gpu": "bind_device_fold bind_device_folds",
        "operators.law_report": "LawReport",
        "operators.laws": "check_laws",
        "operators.layout": "Arrays Field Layout",
        "operators.operator": "Kernel Operator TritonCombine",
        "operators.row_kernels": "row_kernel",
        "planning.certificate_checker.check_certificate": "check_certificate",
        "planning.plan": "Plan",
        "planning.planner": "plan",
        "topology.catalog.systems": "catalog",
        "topology.model": "Device Link Pair Topology",
        "topology.recognise": "load",
    }.items()
    for name in names.split()
}
"""Module of every name."""


if not TYPE_CHECKING:  # for type checkers a name that is not above is an error

    def __getattr__(name: str) -> Any:
        if name == "__version__":  # stands in pyproject.toml alone
            return import_module("importlib.metadata").version("topocomm")
        if name not in _HOMES:
            raise AttributeError(f"module 'topocomm' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return __all__


show_with_rank()
