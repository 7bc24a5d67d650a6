"""What ranks log of what they prepare, and who sees it."""

import logging

import numpy as np
import pytest

from topocomm import SUM, run_local
from topocomm.execute.liveness.log import LOGGER


@pytest.fixture
def quiet_again():
    level, handlers = LOGGER.level, list(LOGGER.handlers)
    yield
    LOGGER.setLevel(level)
    LOGGER.handlers[:] = handlers


@pytest.mark.usefixtures("quiet_again")
@pytest.mark.parametrize(("level", "speakers"), [("off", set()), ("info", {0}), ("debug", {0, 1})])
def test_what_is_said_of_plans(monkeypatch, capfd, level, speakers):
    monkeypatch.setenv("TOPOCOMM_LOG", level)
    run_local(lambda comm: comm.allreduce(np.ones(3), SUM), ranks=2)
    lines = capfd.readouterr().err.splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"topocomm: rank {rank}: ")]
        assert len(own) == (3 if rank in speakers else 0), lines
        if own:
            assert f"rank {rank}: 2 ranks by threads on " in own[0]
            assert "allreduce sum, value float64 [3]: allreduce sum 24 B on 2 ranks: " in own[1]
            assert own[2].endswith("allreduce sum, value float64 [3]: threads")


@pytest.mark.usefixtures("quiet_again")
def test_programs_have_a_logger_of_their_own_to_set(caplog):
    with caplog.at_level(logging.INFO, "topocomm"):
        run_local(lambda comm: comm.allreduce(np.ones(3), SUM), ranks=2)
    assert [record.name for record in caplog.records] == ["topocomm"] * 3


@pytest.mark.usefixtures("quiet_again")
def test_what_is_shown_leaves_the_programs_own_records_as_they_are(monkeypatch, caplog, capfd):
    monkeypatch.setenv("TOPOCOMM_LOG", "info")
    run_local(lambda comm: comm.allreduce(np.ones(3), SUM), ranks=2)
    shown = capfd.readouterr().err
    assert len(caplog.messages) == 3
    assert shown == "".join(f"topocomm: {message}\n" for message in caplog.messages)
