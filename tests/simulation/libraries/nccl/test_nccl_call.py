"""What the messages of a call cost."""

import numpy as np
import pytest

import topocomm
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.simulation.libraries.nccl.nccl_call import NcclCall


def call(protocol, system="v100-4", hosts=2, payload_bytes=1 << 20):
    topology = topocomm.catalog(system, hosts=hosts)
    return NcclCall(topology, job_shape(topology), DEFAULTS, "allreduce", payload_bytes, protocol)


def test_messages_between_groups_are_far():
    src, dst = np.array([0, 3, 7]), np.array([1, 4, 0])
    assert call("Simple").is_far(src, dst).tolist() == [False, True, True]


def test_the_wire_has_the_protocols_bytes_too():
    far = np.array([False, True])
    plain = [1 / DEFAULTS[f"efficiency.{kind}"] for kind in ("nvlink", "network")]
    assert call("Simple").wire(far) == pytest.approx(plain)
    assert call("LL").wire(far) == pytest.approx([each / DEFAULTS["nccl.share.LL"] for each in plain])


@pytest.mark.parametrize(("system", "scale"), [("v100-4", 1.0), ("dgx-h100", 1.9)])
def test_channels_have_a_rate_of_their_own(system, scale):
    for protocol in ("LL", "Simple"):
        expected = DEFAULTS[f"nccl.channel_gb_per_s.{protocol}"] * scale
        assert call(protocol, system).channel_gb_per_s() == pytest.approx(expected)
