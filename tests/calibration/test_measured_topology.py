"""A topology with fitted figures: links, launch and the fact."""

import pytest

import topocomm
from tests.calibration.tables import made_models
from topocomm.calibration.fit_figures import Fit, fit_tables
from topocomm.calibration.measured_topology import with_figures
from topocomm.planning.cost.events import simulate
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS, figures_of, ll128_of
from topocomm.simulation.libraries import work_of
from topocomm.simulation.libraries.library_times import library_us
from topocomm.topology.readers.plain import topology_json


def test_links_get_what_payloads_get():
    topology = topocomm.catalog("v100-4", hosts=2)
    figures = {**DEFAULTS, "efficiency.network": 0.8, "nccl.hop_us.network.LL": 10.0, "nccl.start_us.LL": 5.0}
    fit = Fit(figures, ("efficiency.network", "nccl.hop_us.network.LL", "nccl.start_us.LL"), False, 10)
    measured = with_figures(topology, fit)
    for before, after in zip(topology.links, measured.links, strict=True):
        if before.kind == "network":
            assert after.gb_per_s == pytest.approx(0.8 * before.gb_per_s)
            assert after.latency_us == pytest.approx(2 * before.latency_us)
            assert (after.gb_per_s_source, after.latency_us_source) == ("measured", "measured")
        else:
            assert after == before
    assert measured.launch_us == 5.0
    assert figures_of(measured.facts)["efficiency.network"] == 1.0
    assert ll128_of(measured.facts) is False


def test_it_is_read_back_and_planned_on():
    topology = topocomm.catalog("v100-4", hosts=4)
    measured = with_figures(topology, fit_tables(made_models()))
    again = topology_json.read(topology_json.dumps(measured), "measured.json")
    assert again == measured
    assert again.facts["calibration"] == measured.facts["calibration"]
    plan = topocomm.plan(again, "allreduce", payload_bytes=1 << 20)
    assert plan.figures.predicted_us > topocomm.plan(topology, "allreduce", payload_bytes=1 << 20).figures.predicted_us


@pytest.mark.parametrize("payload_bytes", [1 << 10, 64 << 20])
def test_the_simulator_predicts_with_it_what_the_fit_predicts(payload_bytes):
    models = made_models()
    fit = fit_tables(models)
    measured = with_figures(topocomm.catalog("v100-4", hosts=4), fit)
    own = next(m for m in models if m.table.hosts == 4)
    library = own.library._replace(has_ll128=fit.has_ll128, version=(2, 27))
    shape = job_shape(topocomm.catalog("v100-4", hosts=4))
    expected_us = library_us(library, shape, fit.figures, "allreduce", payload_bytes)
    assert simulate(work_of("nccl", measured, "allreduce", payload_bytes), measured).total_us == pytest.approx(
        expected_us, rel=0.06
    )
