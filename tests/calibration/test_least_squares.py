"""The least-squares fit: exact data, outliers, and figures that no row tells."""

import numpy as np
import pytest

from topocomm.calibration.least_squares import fit_places

X = np.array([1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6])


def predicted(places):
    latency, rate, *_ = np.exp(places)
    return np.log(latency + X / rate)


def fitted(measured, start=(0.0, 0.0), prior=1e-4):
    return np.exp(fit_places(lambda places: predicted(places) - measured, np.array(start), prior=prior))


def test_exact_data_give_the_figures_back():
    assert fitted(predicted(np.log([5.0, 200.0]))) == pytest.approx([5.0, 200.0], rel=1e-3)


def test_a_row_that_no_figure_explains_bends_the_rest_little():
    measured = predicted(np.log([5.0, 200.0]))
    measured[3] += np.log(20)
    assert fitted(measured) == pytest.approx([5.0, 200.0], rel=0.35)


def test_what_no_row_tells_stays_at_its_default():
    measured = predicted(np.log([5.0, 200.0]))
    found = fitted(measured, start=(0.0, 0.0, np.log(7.0)))
    assert found[2] == pytest.approx(7.0)
    assert found[:2] == pytest.approx([5.0, 200.0], rel=1e-3)


def test_a_strong_prior_keeps_the_defaults():
    assert fitted(predicted(np.log([5.0, 200.0])), prior=1e4) == pytest.approx([1.0, 1.0], rel=1e-3)
