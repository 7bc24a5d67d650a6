"""Errors by class, and the worst rows."""

from itertools import pairwise
from math import inf

import pytest

from tests.calibration.tables import made_models
from topocomm.calibration.error_report import (
    SIZE_CLASSES,
    RowError,
    error_table,
    row_errors,
    summary,
    text,
    worst,
)
from topocomm.calibration.fit_figures import fit_tables
from topocomm.calibration.measured_table import MeasuredRow

MIB = 1 << 20


def row(model, payload_bytes, measured_us, predicted_us, *, fitted=False):
    return RowError(model, MeasuredRow(payload_bytes, measured_us), predicted_us, fitted)


def test_size_classes_cover_all_sizes_once():
    assert SIZE_CLASSES[0][1] == 0
    assert all(a[2] == b[1] for a, b in pairwise(SIZE_CLASSES))
    assert SIZE_CLASSES[-1][2] > 1 << 50


def test_errors_of_a_class():
    model = made_models(hosts=(1,))[0]
    errors = [row(model, MIB, 100, 110), row(model, MIB, 100, 80), row(model, MIB, 100, 150), row(model, 8, 10, 10)]
    small, large = error_table(errors)
    assert (small.size_class, small.rows, small.median) == ("< 64 KiB", 1, 0)
    assert (large.size_class, large.rows) == ("1 to 16 MiB", 3)
    assert large.median == pytest.approx(0.2)
    assert large.bias == pytest.approx(1.1)
    assert summary("all", "all", errors).rows == 4
    assert "allreduce nccl device" in text([small, large])


def test_the_worst_rows_are_one_of_each_table():
    a, b = made_models(hosts=(1, 2))
    errors = [row(a, 8, 10, 40), row(a, 16, 10, 1), row(b, 8, 10, 12), row(b, 16, 10, 11)]
    assert [(e.model, e.row.payload_bytes) for e in worst(errors, 9)] == [(a, 16), (b, 8)]
    assert len(worst(errors, 1)) == 1


def test_rows_say_whether_they_were_fitted():
    models = made_models()
    fit = fit_tables(models)
    errors = row_errors(models, fit)
    assert sum(each.fitted for each in errors) == fit.rows
    assert max(each.error for each in errors) < inf
