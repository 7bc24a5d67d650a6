"""The built-in operators, each from the module of its kind."""

from topocomm.operators.arithmetic import BAND, BOR, BXOR, PROD, SUM, VALUE
from topocomm.operators.extremes import ARGMAX, ARGMIN, MAX, MIN

__all__ = ["ARGMAX", "ARGMIN", "BAND", "BOR", "BXOR", "MAX", "MIN", "PROD", "SUM", "VALUE"]
