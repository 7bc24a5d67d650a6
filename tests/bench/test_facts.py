"""Facts of a measurement: versions, the processor, and how data moves."""

import platform

import numpy as np
import pytest

from topocomm import SUM, WELFORD, run_local
from topocomm.bench.facts import gather_facts, kernel_words, pairs_by_way, versions, way_of


def test_facts_of_threads():
    facts = run_local(gather_facts, ranks=3)[0]
    assert (facts.ranks, facts.local_ranks, len(facts.hosts)) == (3, 3, 1)
    assert (facts.transport, facts.pairs) == ("threads", {"threads": 3})
    assert facts.cores >= 1
    assert facts.versions["python"] == platform.python_version()


def test_packages_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setattr("topocomm.bench.facts.PACKAGES", ("numpy", "no-such-package"))
    assert list(versions()) == ["python", "numpy"]


@pytest.mark.parametrize(("ranks", "way"), [(1, "one rank"), (2, "threads")])
def test_the_way_of_a_call(ranks, way):
    def body(comm):
        call = comm.prepare("allreduce", like=np.ones(1), operator=SUM)
        return way_of(call)

    assert set(run_local(body, ranks=ranks)) == {way}


def test_pairs_within_a_host_share_memory():
    class Transport:
        name, hosts = "mpi", (0, 0, 1)

    assert pairs_by_way(Transport) == {"shared memory": 1, "MPI messages": 2}


def test_the_kernel_says_whether_operands_may_change_places():
    assert "commutative" in kernel_words(SUM, SUM.default_layout(1))
    words = kernel_words(WELFORD, WELFORD.default_layout(1))
    assert words.startswith("kernel ") and words.endswith(("; commutative", "; operands kept in rank order"))
