"""Least squares for few figures: Levenberg and Marquardt, robust, with priors.

Source: Moré, "The Levenberg-Marquardt algorithm", LNM 630 (1978); weights of an L1-L2 estimator (Zhang, Image and
Vision Computing 15 (1997) 59-76), so that rows that no model explains do not bend the rest.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEPS = 30
"""Most steps."""
DIFFERENCE = 1e-3
"""Change of a place by which derivatives are taken."""
ROBUST = 0.15
"""Residual (of a logarithm of time) from which a row counts less."""
SAME = 1e-4
"""Relative change of the sum of squares at which the steps end."""


def fit_places(residuals: Callable[[Floats], Floats], start: Floats, *, prior: float) -> Floats:
    """Return the places that make the residuals small, near the start where the rows do not say.

    Args:
        residuals: Function from float64 [k] places to float64 [n] logarithms of predicted over measured.
        start: float64 [k]: places of the defaults: logarithms of figures, or of odds of shares.
        prior: Weight of a difference of 1 from the start, in the same unit as a residual.
    """
    place, damping = start.astype(float), 1e-2
    identity = np.eye(len(start))
    for _ in range(STEPS):
        now = residuals(place)
        weights = 1 / np.sqrt(1 + np.abs(now) / ROBUST)
        own = np.concatenate([now * weights, prior * (place - start)])
        columns = [(residuals(place + DIFFERENCE * unit) - now) / DIFFERENCE * weights for unit in identity]
        slopes = np.concatenate([np.array(columns).T.reshape(len(now), len(start)), prior * identity])
        before = float(own @ own)
        while damping < 1e9:
            change = np.linalg.solve(slopes.T @ slopes + damping * identity, -slopes.T @ own)
            change = np.clip(change, -1.0, 1.0)
            after = residuals(place + change)
            tried = np.concatenate([after * weights, prior * (place + change - start)])
            if float(tried @ tried) < before:
                place, damping = place + change, damping / 4
                break
            damping *= 4
        else:
            break
        if before - float(tried @ tried) < SAME * before:
            break
    return place
