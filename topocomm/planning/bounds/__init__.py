"""Bounds that no schedule can beat, each with an argument and a witness, and the certificate beside a plan.

Operators that reduce inside switches (NVLink SHARP, SHARP) are outside the model: switches only forward.
"""

from topocomm.planning.bounds.bounds import Bounds, bounds_of, certify
from topocomm.planning.bounds.rounds_bound import Bound, least_rounds

__all__ = ["Bound", "Bounds", "bounds_of", "certify", "least_rounds"]
