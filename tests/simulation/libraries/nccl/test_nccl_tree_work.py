"""Double binary trees in the simulator."""

import pytest

from tests.simulation.libraries.nccl.ratios import ratio


@pytest.mark.parametrize(("system", "hosts"), [("dgx-a100", 1), ("dgx-a100", 4), ("v100-4", 4), ("dgx-1-v100", 4)])
def test_trees_take_about_what_their_closed_form_says(system, hosts):
    """Chunks of the closed form wait for each other in part, so it is up to a fifth above in the middle."""
    for payload_bytes in (1 << 10, 64 << 10, 1 << 30):
        assert ratio("nccl-tree", system, hosts, payload_bytes) == pytest.approx(1, rel=0.06)
    assert 0.75 < ratio("nccl-tree", system, hosts, 4 << 20) < 1.06
