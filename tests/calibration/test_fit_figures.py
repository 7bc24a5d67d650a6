"""Fits find the figures that made the times, on a part of the rows, and leave suspect tables out."""

from dataclasses import replace

import numpy as np
import pytest

from tests.calibration.tables import TRUE, made_models
from topocomm import PlanError
from topocomm.calibration.fit_figures import TableModel, fit_tables, is_fitted, with_ll128
from topocomm.planning.libraries.library_figures import DEFAULTS


def errors(models, fit):
    own = [with_ll128(model, fit.has_ll128) for model in models]
    return np.array([abs(m.predicted_us(row, fit.figures) / row.time_us - 1) for m in own for row in m.table.rows])


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_figures_are_found_again(noise):
    models = made_models(noise=noise)
    fit = fit_tables(models)
    assert fit.has_ll128 is False  # the times were made without it
    for name in ("nccl.start_us.LL", "nccl.hop_us.network.LL", "efficiency.network", "nccl.channel_gb_per_s.LL"):
        assert fit.figures[name] == pytest.approx(TRUE[name], rel=0.12 + 2 * noise), name
    assert np.median(errors(models, fit)) < 0.02 + noise
    assert fit.rows == 2 * 7  # every second size of every second host count


def test_hosts_that_were_not_fitted_are_predicted():
    models = made_models()
    fit = fit_tables(models)
    unseen = [model for model in models if model.table.hosts in (2, 8)]
    assert np.median(errors(unseen, fit)) < 0.05


def test_figures_that_no_row_tells_keep_their_default():
    fit = fit_tables(made_models())
    assert "mpi.call_us" not in fit.fitted
    assert fit.figures["mpi.call_us"] == DEFAULTS["mpi.call_us"]
    assert all(0 < fit.figures[name] < 1 for name in fit.fitted if "efficiency" in name or "share" in name)


def test_parts():
    models = made_models()
    by_hosts = {m.table.hosts: m for m in models}
    assert is_fitted(by_hosts[1], 0, models)
    assert not is_fitted(by_hosts[1], 1, models)
    assert not is_fitted(by_hosts[2], 0, models)
    assert is_fitted(by_hosts[4], 2, models)
    two = [by_hosts[1], by_hosts[2]]
    assert is_fitted(by_hosts[2], 0, two)  # with two host counts both take part
    assert fit_tables(models, every_row=True).rows == 4 * 13


def test_suspect_tables_are_left_out():
    models = made_models(hosts=(1, 2))
    bad = replace(
        models[0].table, suspect="old plug-in", rows=tuple(r._replace(time_us=1e6) for r in models[0].table.rows)
    )
    fit = fit_tables([*models, TableModel(bad, models[0].shape, models[0].library)])
    assert np.median(errors(models, fit)) < 0.02
    with pytest.raises(PlanError, match="no table can be fitted"):
        fit_tables([TableModel(bad, models[0].shape, models[0].library)])


def test_mpi_on_host_memory():
    models = made_models(library="openmpi", collective="broadcast")
    fit = fit_tables(models)
    assert fit.has_ll128 is None
    assert all(name.startswith("mpi.") for name in fit.fitted)
    assert np.median(errors(models, fit)) < 0.02
