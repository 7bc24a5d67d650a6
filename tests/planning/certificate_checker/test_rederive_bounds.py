"""Witnesses that do not hold are found: groups, cuts, levels, counts, paths, gaps."""

import copy
from dataclasses import replace

import pytest

from tests.machines import joined, line, switch
from topocomm import PlanError, catalog, check_certificate, plan


def made(machine, collective="allreduce", objective="latency", **options):
    return plan(machine, collective, **({"payload_bytes": 4000, "objective": objective} | options))


def changed(one, **parts):
    """The plan with parts of its certificate replaced."""
    return replace(one, certificate=replace(one.certificate, **parts))


def with_witness(one, bound, **entries):
    """The plan with entries of the witness of one bound replaced."""
    cut = copy.deepcopy([one.certificate.witness, *one.certificate.other_witnesses])
    for each in cut:
        if each["bounds"] == bound:
            each |= entries
    return changed(one, witness=cut[0], other_witnesses=tuple(cut[1:]))


def refused(machine, one, message):
    with pytest.raises(PlanError, match=message):
        check_certificate(machine, one)


CLUSTER = catalog("dgx-h100", hosts=2)


def partition():
    one = made(CLUSTER, objective="throughput")
    witness = one.certificate.witness
    assert (witness["bounds"], witness["kind"]) == ("throughput", "partition")
    return one, witness["groups"]


def test_a_partition_that_overlaps_is_found():
    one, groups = partition()
    twice = [[*groups[0], groups[1][0]], *groups[1:]]
    refused(
        CLUSTER, with_witness(one, "throughput", groups=twice), "every endpoint with ranks in one of several groups"
    )


def test_a_partition_that_leaves_out_an_endpoint_is_found():
    one, groups = partition()
    refused(CLUSTER, with_witness(one, "throughput", groups=groups[1:]), "every endpoint with ranks in one of")


def test_a_group_without_ranks_is_found():
    one, groups = partition()
    refused(CLUSTER, with_witness(one, "throughput", groups=[*groups, ["spine"]]), "a group without ranks")


def test_another_partition_gives_another_bound():
    one, groups = partition()
    merged = [[*groups[0], *groups[1]], *groups[2:]]
    refused(
        CLUSTER, with_witness(one, "throughput", groups=merged), "the throughput bound is .*, its partition witness"
    )
    without_nics = [[device for device in group if "GPU" in device] for group in groups]
    refused(CLUSTER, with_witness(one, "throughput", groups=without_nics), "partition witness gives 274.13")


def test_a_partition_bounds_an_allreduce_only():
    groups = partition()[1]
    witness = {"bounds": "throughput", "kind": "partition", "direction": "out", "groups": groups}
    other = made(CLUSTER, "reduce", "throughput")
    refused(CLUSTER, changed(other, witness=witness), "expected an allreduce")


@pytest.mark.parametrize("group", [["h0/GPU0", "h0/GPU0"], ["h0/GPU0", "GPU9"]])
def test_devices_twice_or_unknown_are_found(group):
    one = made(CLUSTER, "scan", "throughput")
    refused(CLUSTER, with_witness(one, "throughput", group=group), "names one twice, or one that the topology does not")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"share": 0.5}, "0.5 of the payload must cross, the ranks inside make it 1.0"),
        ({"group": ["h0/GPU0"]}, "1.0 of the payload must cross, the ranks inside make it 0.0"),
        ({"group": ["h1/GPU0"]}, "the throughput bound is 400.0, its cut witness gives 514.0"),
        ({"direction": "out"}, "must cross, the ranks inside make it 0.0"),
        ({"direction": "up"}, "malformed witness: KeyError: 'up'"),
    ],
)
def test_a_cut_that_does_not_hold_is_found(entries, message):
    one = made(CLUSTER, "broadcast", "throughput")
    assert one.certificate.witness["kind"] == "cut"
    refused(CLUSTER, with_witness(one, "throughput", **entries), message)


HALVES = [[*range(8)], [*range(8, 16)]]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"across_us": 5.1}, r"5.1 us across groups, some message takes 5.0"),
        ({"inside_us": 0.7}, r"the cheapest message takes 0.6 us, the witness says 0.7"),
        ({"groups": [HALVES[0], HALVES[0]]}, "every rank in one group"),
        ({"groups": [HALVES[0], HALVES[1][:-1]]}, "every rank in one group"),
        ({"groups": [HALVES[0][:-1], [7, *HALVES[1]]]}, "5.0 us across groups, some message takes 0.6"),
        ({"needs": [8, 9]}, r"needs is \[8, 9\], the collective and the ranks give \[8, 8\]"),
        ({"needs": [8, 7]}, "needs is"),
        ({"rank": 16}, r"rank 16 of a witness is outside 0..15"),
        ({"rank": -1}, r"rank -1 of a witness is outside 0..15"),
        ({"side": "knows"}, "malformed witness: ValueError"),
        ({"kind": "hope"}, "latency bound: unknown kind of witness 'hope'"),
    ],
)
def test_levels_that_do_not_hold_are_found(entries, message):
    one = made(CLUSTER)
    assert one.certificate.witness["kind"] == "levels"
    refused(CLUSTER, with_witness(one, "latency", **entries), message)


def test_levels_and_rows_of_messages_hold_under_alpha_only():
    one = made(CLUSTER, port_model="loggp")
    levels = made(CLUSTER).certificate.witness
    refused(CLUSTER, with_witness(one, "latency", **levels), "expected port model alpha")
    row = made(switch(8)).certificate.witness
    refused(switch(8), with_witness(made(switch(8), port_model="loggp"), "latency", **row), "in_a_row is 3, .* give 1")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"needs": 17}, "needs is 17, .* give 16"),
        ({"rank": -1}, "outside 0..15"),
        ({"kind": "none"}, "a bound of 0, and"),
    ],
)
def test_a_count_of_ranks_that_does_not_hold_is_found(entries, message):
    one = made(CLUSTER, objective="rounds")
    assert one.certificate.witness["kind"] == "doubling"
    refused(CLUSTER, with_witness(one, "rounds", **entries), message)


def test_a_path_between_ranks_that_need_nothing_of_each_other_is_found():
    machine = joined((2, 2))
    one = made(machine, "broadcast", port_model="loggp")
    path = {"bounds": "latency", "kind": "path", "from": 1, "to": 3}
    assert one.certificate.witness == path | {"from": 0, "to": 2}
    refused(machine, changed(one, witness=path), "rank 3 needs nothing of rank 1")
    refused(machine, changed(one, witness=path | {"from": -4}), "rank -4 of a witness is outside 0..3")
    refused(machine, changed(one, witness=path | {"from": 0, "to": 1}), "its path witness gives 2.0")


def test_hops_and_ports_are_counted_again():
    row = made(line(2), objective="rounds")
    hops = {"bounds": "rounds", "kind": "hops", "from": 0, "to": 1, "hops": 1}
    check_certificate(line(2), changed(row, witness=hops))
    refused(line(2), changed(row, witness=hops | {"hops": 2}), "hops is 2, .* give 1")
    shared = made(switch(2), "broadcast", "rounds", ranks=["GPU0"] * 5 + ["GPU1"])
    port = shared.certificate.witness
    assert port["kind"] == "port"
    check_certificate(switch(2), shared)
    refused(switch(2), changed(shared, witness=port | {"messages": 6}), "messages is 6, .* give 4")
    refused(switch(2), changed(shared, witness=port | {"endpoint": "GPU1"}), "messages is 4, .* give 1")
    total = made(switch(2), objective="rounds", ranks=["GPU0"] * 4)
    assert total.certificate.witness["kind"] == "messages"
    refused(switch(2), with_witness(total, "rounds", messages=7), "messages is 7, .* give 6")


def test_gaps_are_counted_again():
    machine = switch(8, gap_us=0.4)
    one = made(machine, port_model="loggp")
    assert one.certificate.witness["kind"] == "postal"
    check_certificate(machine, one)
    refused(machine, with_witness(one, "latency", gap_us=0.5), "gap 0.5 us under loggp, links have 0.4")
    refused(machine, with_witness(one, "latency", needs=9), "needs is 9")


def test_no_bound_where_something_crosses_is_found():
    one = made(CLUSTER, objective="rounds")
    none = tuple(
        {"bounds": each["bounds"], "kind": "none"} if each["bounds"] == "throughput" else each
        for each in one.certificate.other_witnesses
    )
    without = changed(one, throughput_upper_bound_gb_per_s=None, other_witnesses=none)
    refused(CLUSTER, without, "throughput without a bound, and something must cross")


def test_parts_that_stay_on_an_endpoint_need_no_bound():
    """Ranks 0 and 1 give to rank 4 beside them, the others nothing: no byte crosses between endpoints."""
    ends = ["GPU1", "GPU1", "GPU0", "GPU0", "GPU1"]
    one = made(switch(2), "gather", "throughput", ranks=ends, root=4, parts=(400, 600, 0, 0, 0))
    assert one.certificate.throughput_upper_bound_gb_per_s is None
    check_certificate(switch(2), one)
