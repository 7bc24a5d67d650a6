"""Variables of the environment: what they do, and values that they do not take."""

import numpy as np
import pytest

from topocomm import SUM, TopocommError, run_local
from topocomm.execute.setup.settings import Settings


@pytest.mark.parametrize("check", ["always", "never"])
def test_check_settings(monkeypatch, check):
    monkeypatch.setenv("TOPOCOMM_CHECK", check)

    def body(comm):
        return [comm.allreduce(np.full(3, float(step)), SUM)[0] for step in range(3)]

    assert run_local(body, ranks=2) == [[0.0, 2.0, 4.0]] * 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("TOPOCOMM_CHECK", "often", "TOPOCOMM_CHECK='often': expected first, always or never"),
        ("TOPOCOMM_TIMEOUT_S", "soon", "TOPOCOMM_TIMEOUT_S='soon': expected a positive number"),
        ("TOPOCOMM_TIMEOUT_S", "0", "TOPOCOMM_TIMEOUT_S='0'"),
        ("TOPOCOMM_LOG", "loud", "TOPOCOMM_LOG='loud': expected off, info, debug"),
    ],
)
def test_bad_settings_are_named(monkeypatch, name, value, message):
    monkeypatch.setenv(name, value)
    with pytest.raises(TopocommError, match=message):
        run_local(lambda comm: None, ranks=1)


def test_another_limit_has_another_name():
    settings = Settings.from_environment({}).with_timeout(5.0, "the group's timeout")
    assert (settings.timeout_s, settings.limit) == (5.0, "the group's timeout")
    assert Settings.from_environment({}).limit == "TOPOCOMM_TIMEOUT_S"
