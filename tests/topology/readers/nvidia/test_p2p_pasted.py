"""What people paste around `nvidia-smi topo -p2p`."""

import pytest

from tests.topology.readers.nvidia.test_nvidia_p2p import matrix, near
from topocomm.topology.readers.nvidia import nvidia_p2p


@pytest.mark.parametrize("prefix", ["2025-03-04 10:11:12 INFO ", "3: ", "[1,0]<stdout>:", "# ", "    7\t"])
def test_prefix_on_every_line(prefix):
    text = "".join(prefix + line for line in matrix(4, near).splitlines(True))
    assert nvidia_p2p.matches(text)
    topology = nvidia_p2p.read(text, "p2p.txt")
    assert topology.facts == nvidia_p2p.read(matrix(4, near), "p2p.txt").facts
    assert topology.warnings == ()


def test_several_capabilities_in_one_text():
    """The first is read; that there are others is said, also below a legend."""
    text = f"$ nvidia-smi topo -p2p r\n{matrix(2)}$ nvidia-smi topo -p2p w\n{matrix(2, lambda a, b: 'NS')}"
    topology = nvidia_p2p.read(text, "p2p.txt")
    assert topology.facts == {"capability": "r", "p2p": {"GPU0-GPU1": "OK"}, "legend": True}
    line = text.splitlines().index("$ nvidia-smi topo -p2p w") + 2
    assert topology.warnings == (f"p2p.txt:{line}: a second matrix starts here; only the first was read",)
