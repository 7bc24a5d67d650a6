"""Other ways to merge partials, for `topocomm bench --operator attention.logsumexp`, and the merge in float64.

Found by the entry-point group `topocomm.bench`; `library` has `allreduce(send, receive, op)`, which sets a call up
and returns it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention.merge.logsumexp import LOGSUMEXP, LSE, OUT, SUM_COLUMNS
from topocomm import OperatorError
from topocomm.extend import bound_shares

Arrays = Mapping[str, NDArray[Any]]


def draw(rng: np.random.Generator, layout: Any) -> dict[str, NDArray[Any]]:
    """Return partials as a decode step has them, none of them empty: the alternatives make 0 / 0 of an empty row."""
    out, lse = (rng.standard_normal((*layout.leading, *f.row_shape), dtype=np.float32) for f in layout.fields)
    return {OUT: out, LSE: lse}


def exact(values: Sequence[Arrays]) -> dict[str, Any]:
    """Return the merge of partials by formula, in float64: weights exp(lse - max), never a merge of two."""
    lse = np.stack([value[LSE] for value in values])
    highest = lse.max(axis=0)
    weights = np.exp(lse - np.where(highest == -np.inf, 0.0, highest))
    total = weights.sum(axis=0)
    out = np.einsum("pr,prd->rd", weights, np.stack([value[OUT] for value in values]))
    with np.errstate(divide="ignore"):
        merged = highest + np.log(total)
    return {OUT: out / np.where(total == 0, 1.0, total)[:, None], LSE: merged}


def alternatives(library: Any) -> list[Any]:
    """Return the ways by the library's all-reduces."""
    return [ThreeAllreduces(library), ThreeCalls(library), MaxAndPackedSum(library), OneSum(library)]


class _Merge:
    """MAX of lse, then the sums of weights and weighted outputs, with the NumPy rescale between."""

    name: str
    in_place = False
    packed = False
    """Whether weights and weighted outputs are in one buffer."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Set up buffers and calls; returns whether the library has them."""
        self._x, self._out, self._highest = x, out, np.empty_like(x[LSE])
        rows, dim = x[OUT].shape
        self._outputs, self._weight = np.empty((rows, dim), np.float32), np.empty(rows, np.float32)
        terms = [self._weight, self._outputs]
        if self.packed:
            terms = [np.empty((rows, dim + 1), np.float32)]
            self._outputs, self._weight = terms[0][:, :-1], terms[0][:, -1]
        self._max = self._library.allreduce(x[LSE], self._highest, "max")
        self._calls = [self._library.allreduce(term, term, "sum") for term in terms]
        return None not in (self._max, *self._calls)

    def run(self) -> None:
        """Merge once; allocates nothing."""
        weight, outputs, out = self._weight, self._outputs, self._out
        self._max()
        np.subtract(self._x[LSE], self._highest, out=weight)
        np.exp(weight, out=weight)
        np.multiply(self._x[OUT], weight[:, None], out=outputs)
        for sum_up in self._calls:
            sum_up()
        np.divide(outputs, weight[:, None], out=out[OUT])
        np.log(weight, out=weight)
        np.add(self._highest, weight, out=out[LSE])

    def result(self) -> Arrays | None:
        """Return the merged partial; None: there is none to check."""
        return self._out

    def free(self) -> None:
        """Nothing is held."""


class ThreeAllreduces(_Merge):
    """Algorithm 3 of the paper: one all-reduce each for lse, weights and weighted outputs."""

    name = "3 all-reduces + rescale"


class MaxAndPackedSum(_Merge):
    """One SUM of the weights and the weighted outputs in one buffer."""

    name = "MAX + packed SUM"
    packed = True


class OneSum(_Merge):
    """One SUM relative to a lse that all ranks know: 1 more than the greatest here.

    Without what `prepare_sum` adds: a time limit, a digest of the reference, checks of arguments.
    """

    name = "one SUM + divide"

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Set up buffer and call; the reference is found once, outside the clock."""
        rows, dim = x[OUT].shape
        lowering = LOGSUMEXP.sum_lowering(LOGSUMEXP.default_layout(1))
        assert lowering is not None, "LOGSUMEXP has one"
        memory = np.empty(rows * (dim + len(SUM_COLUMNS)), np.float32)
        columns = memory[rows * dim :].reshape(len(SUM_COLUMNS), rows)
        sums = {OUT: memory[: rows * dim].reshape(rows, dim), **dict(zip(SUM_COLUMNS, columns, strict=True))}
        self._out, highest = out, np.empty_like(x[LSE])
        find, self._add = (
            self._library.allreduce(x[LSE], highest, "max"),
            self._library.allreduce(memory, memory, "sum"),
        )
        if find is None or self._add is None:
            return False
        self._shares = bound_shares(lowering, x, self._library.size, sums, out, judged=False)
        find()
        self._reference = highest.astype(np.float64) + 1
        return True

    def run(self) -> None:
        """Merge once; allocates nothing."""
        self._shares.send(self._reference)
        self._add()
        if not self._shares.receive(self._reference):
            raise OperatorError(
                "one SUM + divide: the values drawn have no precise sum; expected partials near each other"
            )


class ThreeCalls(_Merge):
    """The three all-reduces alone, without the arithmetic: what the messages cost. Its result is no merge."""

    name = "3 all-reduces alone"

    def prepare(self, x: Arrays, out: Arrays) -> bool:
        """Set up the calls."""
        allreduce, lse = self._library.allreduce, x[LSE]
        self._max = allreduce(lse, out[LSE], "max")
        self._calls = [allreduce(lse, np.empty_like(lse), "sum"), allreduce(x[OUT], out[OUT], "sum")]
        return None not in (self._max, *self._calls)

    def run(self) -> None:
        """Make the three calls."""
        self._max()
        for sum_up in self._calls:
            sum_up()

    def result(self) -> None:
        """There is none to check."""
