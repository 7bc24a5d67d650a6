"""Names and addresses of a lab's network."""

import pytest

from tools.netlab import wiring
from tools.netlab.namespaces import LabError
from tools.netlab.network import network_of, racks


def test_every_host_and_the_launcher_have_addresses():
    network = network_of(racks(2, 1, 100.0))
    assert wiring.hosts_file(network).splitlines() == [
        "127.0.0.1 localhost",
        "10.99.0.1 host0", "10.98.0.1 host0-lab",
        "10.99.0.2 host1", "10.98.0.2 host1-lab",
        "10.99.0.3 launcher",
    ]  # fmt: skip


def test_addresses_of_many_hosts_differ():
    network = network_of(racks(600, 1, 100.0))
    addresses = {wiring.data_address(network, host.name) for host in network.hosts}
    assert len(addresses) == 600
    assert all(0 < int(address.split(".")[3]) < 255 for address in addresses)


def test_the_upper_end_of_every_cable_is_a_bridges_port():
    network = network_of(racks(4, 1, 100.0, 2))
    assert wiring.ports_of(network, 0) == ("host0", "lab0", "u0")
    assert wiring.ports_of(network, 5) == ("switches", "d5", "u5")


def test_a_cable_without_a_rate_cannot_get_another():
    network = network_of(racks(2, 1, 100.0))
    free = network._replace(cables=tuple(cable._replace(up_gb_per_s=None) for cable in network.cables))
    with pytest.raises(LabError, match="cable host0-leaf0 was made without a rate"):
        wiring.set_rate(free, 0, 0.1, {})
