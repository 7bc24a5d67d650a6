"""Laws that plans rely on, tried on sampled values of an operator."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from topocomm.errors import OperatorError
from topocomm.operators.device_law import folded, trial_of
from topocomm.operators.differences import LONGEST, differs, first_row, real, rounded, show, wide, widest_difference
from topocomm.operators.dtypes import limits
from topocomm.operators.law_report import Law, LawReport
from topocomm.operators.layout import Layout
from topocomm.operators.operator import Operator, as_operator
from topocomm.operators.operator_arguments import fields_apart
from topocomm.operators.samples import Values, identity_value, sample_layout, samples

TOLERANCE_ULP = 32.0
"""Tolerance for rounding, in units in the last place of the greatest number, or product of two, involved."""

FEWEST = 32
"""Number of samples that decide whether an operator rounds."""


def check_laws(
    op: Operator,
    *,
    dims: Mapping[str, int] | None = None,
    dtype: DTypeLike | None = None,
    samples: int = 256,
    seed: int = 0,
) -> LawReport:
    """Try the laws of an operator on samples, and report those kept and broken, with counterexamples of one row.

    Tried are: result shapes and dtypes; that `combine` does not write to its arguments; that it treats every row by
    itself, where the fields have rows; the identity on both sides; associativity, exact for integers and for operators
    that only select, else within rounding (the worst is measured); commutativity, bit for bit, if the operator claims
    it; and that its kernel agrees with `combine`, as does its Triton combine where there is a GPU or Triton's
    interpreter is on (TRITON_INTERPRET=1 before triton is imported). Where an operator rounds, values whose result is
    not finite are only tried for commutativity.

    Args:
        op: The operator. Its `sample`, if it has one, makes the values; else they are ordinary numbers with ties,
            signed zeros, infinities and identities, and the extremes of the dtype, NaN and subnormals among them.
        dims: Sizes of named axes; those missing are in the operator's `default_dims`, or 3.
        dtype: Of the fields that leave it open; None: float32, or int64 where that is refused.
        samples: Triples of rows, 32 or more, tried of ordinary numbers, and as many of extremes: 256 are 512 in all;
            triples of whole values of an operator without rows.
        seed: Equal seeds give equal values.

    Raises:
        OperatorError: It is no operator, refuses the dtype or the sizes, or has no such axis; or its `sample` makes
            something else than a value of the layout.
    """
    count = max(samples, FEWEST)
    layout = sample_layout(as_operator(op), dims, dtype, count)
    try:
        trial = _Trial(op, layout, count, seed)
        laws, worst_ulp = trial.run()
    except OperatorError as error:
        if taken := {name: size for name, size in layout.dims if name not in (dims or {})}:
            error.add_note(f"check_laws took the sizes {taken}; give others as dims={{{next(iter(taken))!r}: 2}}")
        raise
    return LawReport(op.name, str(layout), tuple(laws), worst_ulp, op.sample is not None, trial.tried)


class _Case(NamedTuple):
    a: Values
    b: Values
    c: Values
    extreme: bool


class _Gap(NamedTuple):
    """Differences between two values, row by row."""

    exact: NDArray[np.bool_]
    """Integers differ."""
    odd: NDArray[np.bool_]
    """Floats differ, and not both are finite."""
    ulp: NDArray[np.float64]
    """Units of the last place of the greatest number involved between finite floats."""
    scale: NDArray[np.float64]
    """That number."""


class _Broken(Exception):
    """A broken law that makes trying the others pointless."""

    def __init__(self, law: str, detail: str) -> None:
        self.law, self.detail = law, detail


class _Trial:
    def __init__(self, operator: Operator, layout: Layout, count: int, seed: int) -> None:
        self._op, self._layout = operator, layout
        rng = np.random.default_rng(seed)
        triples = samples(operator, layout, rng, count)
        self._cases = [_Case(a, b, c, bool(turn % 2)) for turn, (a, b, c) in enumerate(triples)]
        self._neutral = identity_value(operator, layout)
        self._worst_ulp = 0.0
        self.tried = 2 * count
        self._without_rows = ""
        """What combine raised on values of no rows."""

    def run(self) -> tuple[list[Law], float]:
        try:
            with np.errstate(all="ignore"):
                for case in self._cases:
                    self._combine(case.a, case.b)
                if self._op.splittable:  # values without rows combine to one without rows
                    self._on_no_rows()
                associativity = self._associativity()  # first: it tells whether the operator rounds
                laws = [*self._row_by_row(), self._identity(), associativity, self._commutativity(), *self._kernels()]
        except _Broken as broken:
            self.tried = 0
            return [Law(broken.law, False, broken.detail)], 0.0
        return [Law("shapes", True), Law("purity", True), *laws], self._worst_ulp

    def _on_no_rows(self) -> None:
        nothing = {f.name: np.zeros((0, *f.row_shape), f.dtype) for f in self._layout.fields}
        try:
            with warnings.catch_warnings(action="ignore"):
                result = self._op.combine(nothing, nothing)
        except Exception as error:  # noqa: BLE001 - whatever the user's function raises
            self._without_rows = _raised("values of 0 rows", error)
        else:
            self._check_form(result, nothing)

    def _combine(self, left: Values, right: Values) -> Values:
        """Combine flattened rows as a fold does, and check the result's form and the arguments' purity."""
        fields, rows = self._layout.fields, self._layout.rows
        operands = [
            {f.name: value[f.name].reshape((rows, *f.row_shape)).copy() for f in fields} for value in (left, right)
        ]
        copies = [{name: array.copy() for name, array in operand.items()} for operand in operands]
        result = self._op.combine(*operands)
        for side, operand, copy in zip(("left", "right"), operands, copies, strict=True):
            for name, array in operand.items():
                if array.tobytes() != copy[name].tobytes():
                    row = first_row(differs(array, copy[name]), self._op.splittable)
                    raise _Broken(
                        "purity",
                        f"combine writes to field {name!r} of its {side} argument: "
                        f"{show(copy[name], row)} became {show(array, row)}",
                    )
        self._check_form(result, operands[0])
        return {f.name: np.asarray(result[f.name]).reshape(left[f.name].shape) for f in fields}

    def _check_form(self, result: Any, operand: Values) -> None:
        if not isinstance(result, Mapping) or sorted(result) != sorted(operand):
            got = fields_apart(operand, result) if isinstance(result, Mapping) else f"got {type(result).__name__}"
            raise _Broken("shapes", f"combine must return a dict of the fields {list(operand)}; {got}")
        for name, array in operand.items():
            part = np.asarray(result[name])
            field = f"field {name!r} of the result"
            if part.shape != array.shape:
                raise _Broken("shapes", f"{field} has shape {list(part.shape)}, not {list(array.shape)}")
            if part.dtype != array.dtype:
                raise _Broken("shapes", f"{field} is {part.dtype}, not {array.dtype}; add .astype")

    def _associativity(self) -> Law:
        tries = []
        for case in self._cases:
            ab, bc = self._combine(case.a, case.b), self._combine(case.b, case.c)
            left, right = self._combine(ab, case.c), self._combine(case.a, bc)
            tries.append((case, left, right, self._gap(left, right, [*case[:3], ab, bc, left, right])))
        self._rounds = any(gap.ulp.any() for case, *_, gap in tries if not case.extreme)
        failures: list[str] = []
        for case, left, right, gap in tries:
            bad = self._beyond_rounding(gap, case.extreme)
            failures += self._example(bad, case[:3], "abc", {"(a.b).c": left, "a.(b.c)": right})
            if not case.extreme:
                self._worst_ulp = max(self._worst_ulp, float(gap.ulp.max(initial=0)))
        detail = f"rounding moves it by up to {self._worst_ulp:.1f} ulp" if self._rounds else "exact on all tried"
        return _law("associativity", failures, detail, "beyond what rounding explains" if self._rounds else "")

    def _gap(self, left: Values, right: Values, every: list[Values]) -> _Gap:
        """Measure the differences of two values; `every` has all numbers involved."""
        scale = np.maximum.reduce([self._greatest(value) for value in every])
        rows = self._layout.rows
        exact, odd, ulp = np.zeros(rows, bool), np.zeros(rows, bool), np.zeros(rows)
        for f in self._layout.fields:
            unequal = differs(left[f.name], right[f.name], zeros=False)
            if not rounded(f.dtype):
                exact |= self._any(unequal)
                continue
            one, other = wide(left[f.name]), wide(right[f.name])
            finite = np.isfinite(one) & np.isfinite(other)
            odd |= self._any(unequal & ~finite)
            apart = self._flat(np.where(unequal & finite, np.abs(one - other), 0)).max(axis=1, initial=0)
            ulp = np.maximum(ulp, apart / (float(limits(real(f.dtype)).eps) * scale))
        return _Gap(exact, odd, ulp, scale)

    def _beyond_rounding(self, gap: _Gap, extreme: bool) -> NDArray[np.bool_]:
        """Return the rows that differ by more than rounding.

        Where an operator rounds, products of the greatest numbers overflow and those of the least vanish, so that its
        extremes, and what is not finite, may come out otherwise.
        """
        if not self._rounds:
            return gap.exact | gap.odd | (gap.ulp > 0)
        if extreme:
            return np.zeros_like(gap.exact)
        return gap.exact | (gap.ulp > TOLERANCE_ULP * np.maximum(gap.scale, 1))

    def _row_by_row(self) -> list[Law]:
        """Check that a row of a result depends on that row alone: plans split values between rows.

        Finite rows are also tried by themselves: of a rule that mixes rows one infinity may hide that.
        """
        if not self._op.splittable:
            return []
        advice = "a row depends on others; for a value that is never cut leave out '*rows'"
        tried = [(case.a, case.b) for case in self._cases if not (case.extreme and self._rounds)]
        finite = [self._finite_rows(case) for case in self._cases if not case.extreme]
        failures: list[str] = []
        for a, b in filter(None, (*finite, *tried)):
            whole = self._combine(a, b)
            try:
                cut = self._combine_in_parts(a, b)
            except _Broken:
                raise
            except Exception as error:  # noqa: BLE001 - whatever the user's function raises on fewer rows
                return [Law("rows", False, f"{_raised('a part of the rows', error)}; {advice}")]
            gap = self._gap(cut, whole, [a, b, whole, cut])
            bad = gap.exact | gap.odd | (gap.ulp > (TOLERANCE_ULP * np.maximum(gap.scale, 1) if self._rounds else 0))
            failures += self._example(bad, (a, b), "ab", {"a.b": whole, "a.b of fewer rows": cut})
            if failures:
                break
        if self._without_rows and not failures:
            return [Law("rows", False, f"{self._without_rows}; {advice}")]
        return [_law("rows", failures, "", advice)]

    def _finite_rows(self, case: _Case) -> tuple[Values, Values] | None:
        """Return the finite rows of two operands, repeated to as many as all are; None where there are none."""
        finite = self._finite(case.a) & self._finite(case.b)
        rows = np.resize(np.flatnonzero(finite), self._layout.rows)
        if finite.all() or not finite.any():
            return None
        a, b = ({name: array[rows] for name, array in v.items()} for v in case[:2])
        return a, b

    def _finite(self, value: Values) -> NDArray[np.bool_]:
        finite = np.ones(self._layout.rows, bool)
        for array in value.values():
            if rounded(array.dtype):
                finite &= self._flat(np.isfinite(wide(array))).all(axis=1)
        return finite

    def _combine_in_parts(self, left: Values, right: Values) -> Values:
        """Combine the first row by itself, then the others in two halves."""
        middle = self._layout.rows // 2
        parts = []
        for span in (slice(1), slice(1, middle), slice(middle, None)):
            operands = [{name: array[span].copy() for name, array in value.items()} for value in (left, right)]
            parts.append(self._op.combine(*operands))
            self._check_form(parts[-1], operands[0])
        return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in left}

    def _identity(self) -> Law:
        failures: list[str] = []
        for case in self._cases:
            finite = self._finite(case.a) | (not self._rounds)
            for text, pair in (("e.a", (self._neutral, case.a)), ("a.e", (case.a, self._neutral))):
                result = self._combine(*pair)
                bad = self._unequal(result, case.a, zeros=False) & finite
                failures += self._example(bad, (self._neutral, case.a), "ea", {text: result, "a": case.a})
        return _law("identity", failures)

    def _commutativity(self) -> Law:
        failures: list[str] = []
        for case in self._cases:
            one, other = self._combine(case.a, case.b), self._combine(case.b, case.a)
            bad = self._unequal(one, other, zeros=True)
            failures += self._example(bad, (case.a, case.b), "ab", {"a.b": one, "b.a": other})
        if not self._op.commutative:
            seems = "it seems to commute: commutative=True would allow more plans"
            return Law("commutativity", True, "so ranks keep their order" if failures else seems, claimed=False)
        return _law("commutativity", failures, "bit for bit", "though claimed")

    def _kernels(self) -> list[Law]:
        laws = []
        if self._op.kernel is not None and self._op.kernel(self._layout) is not None:
            laws.append(self._folds_alike("kernel", self._op.fold_version(self._layout)))
        trial = trial_of(self._op, self._layout)
        if trial is not None:
            combine, place = trial
            try:
                laws.append(self._folds_alike("Triton", combine.version, place))
            except Exception as error:  # noqa: BLE001 - whatever a compiler says of the user's function
                lines = str(error).strip().splitlines() or [""]
                laws.append(Law("Triton", False, f"it does not run: {type(error).__name__}: {lines[0][:LONGEST]}"))
        return laws

    def _folds_alike(self, name: str, version: str, place: str = "") -> Law:
        failures: list[str] = []
        for case in self._cases:
            want = self._combine(self._combine(case.a, case.b), case.c)
            got = folded(self._op, self._layout, case[:3], place)
            bad = self._beyond_rounding(self._gap(got, want, [*case[:3], got, want]), case.extreme)
            failures += self._example(bad, case[:3], "abc", {name: got, "combine": want})
        return _law(name, failures, version, "differs from combine")

    def _flat(self, array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(self._layout.rows, array.size // max(1, self._layout.rows))

    def _any(self, array: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return np.asarray(self._flat(array).any(axis=1))

    def _greatest(self, value: Values) -> NDArray[np.float64]:
        """Return the greatest finite magnitude of every row, at least the least normal number."""
        greatest = np.full(self._layout.rows, np.finfo(np.float32).tiny, np.float64)
        for array in value.values():
            if rounded(array.dtype):
                size = np.abs(wide(array))
                greatest = np.maximum(greatest, self._flat(np.where(np.isfinite(size), size, 0)).max(axis=1, initial=0))
        return greatest

    def _unequal(self, one: Values, other: Values, *, zeros: bool) -> NDArray[np.bool_]:
        unequal = np.zeros(self._layout.rows, bool)
        for name in one:
            unequal |= self._any(differs(one[name], other[name], zeros=zeros))
        return unequal

    def _example(
        self, bad: NDArray[np.bool_], values: tuple[Values, ...], names: str, results: Mapping[str, Values]
    ) -> list[str]:
        """Return the bad row with the shortest text: in what two results differ, then the operands.

        Of operands that are long together the field that differs alone is shown.
        """
        texts = []
        one, other = results.values()
        for row in np.flatnonzero(bad)[:64]:
            at = int(row) if self._op.splittable else None
            field, place = widest_difference(one, other, at)
            where = [f"field {field!r}"] * (len(self._layout.fields) > 1) + [str(list(place))] * bool(place)
            numbers = [
                f"{name} = {np.asarray(value[field] if at is None else value[field][at])[place].tolist()}"
                for name, value in results.items()
            ]
            operands = [(name, v) for name, v in zip(names, values, strict=True) if name not in results]
            text = ", ".join(f"{name} = {_shown(value, at)}" for name, value in operands)
            if len(text) > LONGEST:
                text = ", ".join(f"{name} = {_shown({field: value[field]}, at)}" for name, value in operands)
            texts.append(f"{' '.join(where)}{': ' * bool(where)}{', '.join(numbers)}; {text}")
        return sorted(texts, key=len)[:1]


def _raised(what: str, error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"combine raises on {what}: {type(error).__name__}: {lines[0][:LONGEST]}"


def _shown(value: Values, row: int | None) -> str:
    parts = [f"{name} {show(array, row)}" for name, array in value.items()]
    return parts[0].split(" ", 1)[1] if len(parts) == 1 else f"({', '.join(parts)})"


def _law(name: str, failures: list[str], detail: str = "", broken: str = "") -> Law:
    return Law(name, False, broken, min(failures, key=len)) if failures else Law(name, True, detail)
