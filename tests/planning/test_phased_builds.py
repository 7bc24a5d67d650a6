"""Slices that take phases together: how many are tried, and what they hide."""

from dataclasses import dataclass

import pytest

from topocomm import catalog, check_certificate, plan
from topocomm.planning.algorithms.flat import flat_allgather
from topocomm.planning.phased_builds import PhasedBuild, is_phased, worth_slices
from topocomm.planning.schedule.transforms import unrolled

MIB = 1 << 20
ONCE = flat_allgather((64, 64))


@dataclass(frozen=True)
class _Costs:
    """What a schedule takes, and how often it was asked for."""

    predicted_us: float
    busiest_us: float = 0.0

    def exceeds(self, most_us):
        return self.busiest_us > most_us

    def predicted_within(self, most_us):
        return self.predicted_us if self.predicted_us <= most_us else float("inf")


@dataclass(frozen=True)
class _Costed:
    schedule: object
    cost: _Costs


def tried(us_of, most_us=float("inf"), busiest_us=0.0):
    """The numbers of slices that were costed, and those that were kept."""
    costed = []

    def cost_of(_, schedule):
        slices = schedule.repeat.count
        costed.append(slices)
        return _Costed(schedule, _Costs(us_of(slices)))

    others = [(slices, f"rails-{slices}", PhasedBuild(ONCE, slices)) for slices in (2, 4, 8, 16, 16)]
    first = _Costed(ONCE, _Costs(us_of(1), busiest_us))
    return costed, [place for place, _ in worth_slices(first, others, most_us, cost_of)]


def test_more_slices_are_tried_while_they_gain():
    assert tried(lambda slices: 10 + 80 / slices) == ([2, 4, 8, 16], [2, 4, 8, 16])
    assert tried(lambda slices: 10 + 8 / slices + slices) == ([2, 4], [2])
    assert tried(lambda slices: 10 + slices) == ([2], [])


def test_more_slices_are_tried_while_they_may_beat_the_others():
    assert tried(lambda slices: 50 + 80 / slices, most_us=49) == ([2], [])
    assert tried(lambda slices: 50 + 80 / slices, most_us=51) == ([2, 4, 8, 16], [2, 4, 8, 16])
    assert tried(lambda slices: 50 + 80 / slices, most_us=60, busiest_us=61) == ([], [])


def test_which_builds_are_phased():
    assert is_phased([(0, "rails-2", PhasedBuild(ONCE, 2))])
    assert not is_phased([]) and not is_phased([(0, "flat", lambda: ONCE)])
    assert PhasedBuild(ONCE, 2)().repeat.count == 2 and PhasedBuild(ONCE, 1)() is ONCE


@pytest.mark.parametrize(
    ("system", "count", "name", "payload_bytes", "most"),
    [
        ("dgx-h100", 8, "allreduce", MIB, 1.36),  # 1.67
        ("dgx-h100", 8, "allreduce", 16 * MIB, 1.01),  # 1.07
        ("dgx-h100", 8, "reduce", MIB, 1.36),  # 1.67
        ("hgx-a100-4", 16, "allgather", MIB, 1.01),  # 1.27
        ("dgx-h200", 3, "allgather", 4 * MIB, 1.01),  # 1.32
        ("v100-4", 3, "allreduce", MIB // 4, 1.27),  # 1.57
        ("dgx-1-p100", 7, "reduce", MIB // 4, 2.0),  # 2.27
    ],
)
def test_slices_pass_links_inside_while_others_are_on_their_way(system, count, name, payload_bytes, most):
    """In the order of rounds a port waited for what was on its way: then it was the gap that each line names."""
    machine = catalog(system, hosts=count)
    made = plan(machine, name, payload_bytes=payload_bytes)
    assert made.certificate.gap <= most
    assert unrolled(made.schedule).rounds > made.schedule.rounds
    check_certificate(machine, made)


def test_with_several_ports_slices_follow_one_another():
    """Links inside and NICs are then busy at once: in phases 64 MiB over 16 hosts took 743 us as called, not 513."""
    machine = catalog("dgx-h100", hosts=4)
    for ports, spaced in ((1, True), (8, False)):
        made = plan(machine, payload_bytes=16 * MIB, ports=ports).schedule
        assert made.repeat is not None and made.repeat.stagger_rounds == 1
        assert (made.rounds > len(set(made.transfers[:, 0].tolist()))) is spaced
