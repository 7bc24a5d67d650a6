"""Requests that are no requests: one line that names the argument."""

import pytest

from tests.machines import switch
from topocomm import PlanError, plan


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"ports": 1.5}, "ports 1.5: expected a whole number"),
        ({"ports": 4}, "ports 4: expected 1 to 3 with 4 ranks"),
        ({"root": 0.5}, "root 0.5: expected a whole number"),
        ({"payload_bytes": 8.0}, "payload_bytes 8.0: expected a whole number"),
        ({"payload_bytes": None}, "payload_bytes None: expected a whole number"),
        ({"ranks": "GPU0"}, "ranks 'GPU0': expected a list of endpoint ids, one for each rank"),
        ({"ranks": ["GPU0", "GPU9"]}, "rank on 'GPU9': not an endpoint of topology 'switch"),
        ({"topology": "dgx-h100"}, "topology: expected a topocomm.Topology, got str; topocomm.load(path) reads one"),
    ],
)
def test_what_is_no_request_is_refused_in_one_line(wanted, message):
    request = {"topology": switch(4), "collective": "reduce", "payload_bytes": 64} | wanted
    with pytest.raises(PlanError) as error:
        plan(**request)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
