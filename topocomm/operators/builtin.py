"""The built-in operators, each from the module of its kind."""

from topocomm.operators.builtins.affine import AFFINE, AFFINE_MATRIX
from topocomm.operators.builtins.arithmetic import BAND, BOR, BXOR, PROD, SUM, VALUE
from topocomm.operators.builtins.extremes import ARGMAX, ARGMIN, MAX, MIN
from topocomm.operators.builtins.statistics import LOGADDEXP, WELFORD
from topocomm.operators.builtins.topk import TOPK, topk_value

READY = (SUM, PROD, MAX, MIN, ARGMAX, ARGMIN, BAND, BOR, BXOR, LOGADDEXP, WELFORD, AFFINE)
"""Operators as they are."""
SIZED = (TOPK, AFFINE_MATRIX)
"""Functions from a size to an operator."""

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
    "READY",
    "SIZED",
    "SUM",
    "TOPK",
    "VALUE",
    "WELFORD",
    "topk_value",
]
