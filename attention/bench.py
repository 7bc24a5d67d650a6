"""Other ways to merge partials, for `topocomm bench --operator attention.logsumexp`, and the merge in float64.

Found by the entry-point group `topocomm.bench`; `library` has `allreduce(send, receive, op)`, which sets a call up
and returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention.merge.logsumexp import LSE, OUT

Arrays = Mapping[str, NDArray[Any]]
Call = Callable[[], object]


def draw(rng: np.random.Generator, layout: Any) -> dict[str, NDArray[Any]]:
    """Partials as a decode step has them, none of them empty: the alternatives make 0 / 0 of a row without keys."""
    out, lse = (rng.standard_normal((*layout.leading, *f.row_shape), dtype=np.float32) for f in layout.fields)
    return {OUT: out, LSE: lse}


def exact(values: Sequence[Arrays]) -> dict[str, Any]:
    """The merge of partials by formula, in float64: weights exp(lse - max), never a merge of two."""
    lse = np.stack([value[LSE] for value in values])
    highest = lse.max(axis=0)
    weights = np.exp(lse - np.where(highest == -np.inf, 0.0, highest))
    total = weights.sum(axis=0)
    out = np.einsum("pr,prd->rd", weights, np.stack([value[OUT] for value in values]))
    with np.errstate(divide="ignore"):
        merged = highest + np.log(total)
    return {OUT: out / np.where(total == 0, 1.0, total)[:, None], LSE: merged}


def alternatives(library: Any) -> list[Any]:
    """The ways by the library's all-reduces."""
    return [ThreeAllreduces(library), ThreeCalls(library), MaxAndPackedSum(library)]


class ThreeAllreduces:
    """MAX of lse, SUM of the weights, SUM of the weighted outputs, with the NumPy rescale between: algorithm 3."""

    name = "3 all-reduces + rescale"
    in_place = False

    def __init__(self, library: Any) -> None:
        self._library = library

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Set up buffers and calls."""
        lse, self._x, self._out = x[LSE], x, out
        self._highest, self._weight = np.empty_like(lse), np.empty_like(lse)
        self._weighted = np.empty_like(x[OUT])
        allreduce = self._library.allreduce
        self._max = allreduce(lse, self._highest, "max")
        self._sum_weights = allreduce(self._weight, self._weight, "sum")
        self._sum_outputs = allreduce(self._weighted, self._weighted, "sum")
        return None not in (self._max, self._sum_weights, self._sum_outputs)

    def run(self) -> None:
        """One merge; every array is there already."""
        weight, weighted, out = self._weight, self._weighted, self._out
        self._max()
        np.subtract(self._x[LSE], self._highest, out=weight)
        np.exp(weight, out=weight)
        np.multiply(self._x[OUT], weight[:, None], out=weighted)
        self._sum_weights()
        self._sum_outputs()
        np.divide(weighted, weight[:, None], out=out[OUT])
        np.log(weight, out=weight)
        np.add(self._highest, weight, out=out[LSE])

    def result(self) -> Arrays:
        """The merged partial."""
        return self._out

    def free(self) -> None:
        """Nothing is held."""


class ThreeCalls:
    """The same three all-reduces alone, without the arithmetic: what the messages cost. Its result is no merge."""

    name = "3 all-reduces alone"
    in_place = False

    def __init__(self, library: Any) -> None:
        self._library = library

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Set up the calls."""
        allreduce, lse = self._library.allreduce, x[LSE]
        self._calls = [
            allreduce(lse, out[LSE], "max"),
            allreduce(lse, np.empty_like(lse), "sum"),
            allreduce(x[OUT], out[OUT], "sum"),
        ]
        return None not in self._calls

    def run(self) -> None:
        """The three calls."""
        first, second, third = self._calls
        first()
        second()
        third()

    def result(self) -> None:
        """There is none to check."""

    def free(self) -> None:
        """Nothing is held."""


class MaxAndPackedSum:
    """MAX of lse, then one SUM of the weights and the weighted outputs in one buffer."""

    name = "MAX + packed SUM"
    in_place = False

    def __init__(self, library: Any) -> None:
        self._library = library

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Set up buffers and calls."""
        lse, self._x, self._out = x[LSE], x, out
        rows, dim = x[OUT].shape
        self._highest, self._packed = np.empty_like(lse), np.empty((rows, dim + 1), np.float32)
        self._max = self._library.allreduce(lse, self._highest, "max")
        self._sum = self._library.allreduce(self._packed, self._packed, "sum")
        return None not in (self._max, self._sum)

    def run(self) -> None:
        """One merge."""
        packed, out = self._packed, self._out
        outputs, weight = packed[:, :-1], packed[:, -1]
        self._max()
        np.subtract(self._x[LSE], self._highest, out=weight)
        np.exp(weight, out=weight)
        np.multiply(self._x[OUT], weight[:, None], out=outputs)
        self._sum()
        np.divide(outputs, weight[:, None], out=out[OUT])
        np.log(weight, out=weight)
        np.add(self._highest, weight, out=out[LSE])

    def result(self) -> Arrays:
        """The merged partial."""
        return self._out

    def free(self) -> None:
        """Nothing is held."""
