"""What the planner chooses, that it is deterministic, and how it refuses."""

from collections import Counter

import pytest

import topocomm
from tests.hash_seeds import printed
from tests.machines import hosts, switch
from tests.plans import request_on
from topocomm import SUM, Device, Link, PlanError, Topology, plan
from topocomm.planning import planner
from topocomm.planning.algorithms.binomial import binomial_reduce
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.collectives import IN_PARTS
from topocomm.planning.cost.cost_models import Cost
from topocomm.planning.report.plan_comparison import ranked
from topocomm.planning.request import BoundedBuild, LikelyBuild
from topocomm.planning.routing.paths import NoRouteError, PathFinder
from topocomm.planning.schedule.schedule import split_rows
from topocomm.planning.searched import Searched


def test_objectives_choose_different_algorithms():
    machine = switch(8)
    chosen = {o: plan(machine, payload_bytes=1 << 26, objective=o).algorithm for o in ("latency", "throughput")}
    assert chosen == {"latency": "recursive-doubling", "throughput": "rabenseifner"}
    assert plan(machine, payload_bytes=64, objective="auto").algorithm == "flat"  # stores overlap under LogGP
    assert plan(machine, payload_bytes=1 << 26, objective="auto").algorithm == "direct"


def test_the_plan_is_rated_by_its_own_objective():
    machine = switch(8)
    assert plan(machine, payload_bytes=0, objective="latency").certificate.gap == pytest.approx(1.0)
    assert plan(machine, payload_bytes=0, objective="rounds").certificate.gap == 1.0
    assert plan(machine, payload_bytes=1 << 20, objective="throughput").certificate.gap == pytest.approx(1.0)


def test_two_levels_save_slow_hops_on_odd_host_counts():
    """3 hosts of 8: fold inside, hear of both other hosts at once on different rails, tell the neighbour."""
    best = plan(hosts(3, 8), payload_bytes=0, objective="latency")
    assert best.algorithm == "rails-3"
    assert best.figures.alpha_us == pytest.approx(3 * 0.6 + 5.0 + 0.6)


def test_the_payload_of_an_operator_without_rows_is_one_value_or_none():
    whole = topocomm.Operator(
        "state", (topocomm.Field("s", ("n",)),), topocomm.SUM.combine, {"s": 0}, True, default_dims={"n": 4}
    )
    made = plan(switch(4), payload_bytes=16, operator=whole)
    assert (made.payload_bytes, made.figures.wire_bytes) == (16, 16 * made.figures.transfers)
    latency = plan(switch(4), payload_bytes=0, operator=whole)
    assert (latency.payload_bytes, latency.figures.wire_bytes) == (0, 0)
    for one in (made, latency):
        topocomm.check_certificate(switch(4), one)
        assert ranked(one, switch(4), whole)[0].algorithm == one.algorithm
    for payload_bytes in (17, 32, -16):
        with pytest.raises(PlanError, match="bytes: expected the 16 bytes of one value of operator 'state', which has"):
            plan(switch(4), payload_bytes=payload_bytes, operator=whole)


@pytest.mark.parametrize("collective", IN_PARTS)
@pytest.mark.parametrize("rows", [0, 2, 13])
def test_parts_are_as_even_as_can_be(collective, rows):
    made = plan(switch(4), collective, payload_bytes=4 * rows)
    times = 4 if collective == "alltoall" else 1
    assert made.collective.parts == tuple(size for _, size in split_rows(rows, 4)) * times
    assert made.payload_bytes == 4 * rows
    assert made.schedule.rows == times * rows


def test_canonical_order_has_one_shard_a_rank_unless_said():
    made = plan(switch(4), payload_bytes=64, order="canonical")
    assert (made.order, made.collective.shards) == ("canonical", (0, 1, 2, 3, 4))
    other = plan(switch(4), payload_bytes=64, order="canonical", shards=(0, 4, 4, 5, 9))
    assert other.collective.shards == (0, 4, 4, 5, 9)
    assert other.proof.canonical_tree
    assert not plan(switch(4), payload_bytes=64).proof.canonical_tree


def test_the_bytes_of_a_plan_depend_on_its_inputs_only():
    code = "import topocomm;print(topocomm.plan(topocomm.catalog('dgx-h100', hosts=2), payload_bytes=65536).digest)"
    digests = printed(code)
    assert len(digests) == 1 and len(digests.pop().strip()) == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"payload_bytes": 6}, r"6 bytes: expected a whole number of rows of operator 'sum', 4 bytes each"),
        ({"payload_bytes": -4}, r"-4 bytes"),
        ({"objective": "speed"}, r"objective 'speed': expected one of latency, rounds, throughput, auto"),
        ({"port_model": "beta"}, r"port model 'beta': expected one of alpha, loggp"),
        ({"ports": 0}, r"ports 0: expected 1 to 3 with 4 ranks"),
        ({"ports": 4}, r"ports 4: expected 1 to 3 with 4 ranks"),
        ({"collective": "barrier"}, r"unknown collective 'barrier'; expected one of allreduce, reduce, broadcast"),
        ({"collective": "reduce", "root": 4}, r"root 4 is outside ranks 0..3"),
        ({"ranks": ["GPU0", "GPU9"]}, r"rank on 'GPU9': not an endpoint of topology 'switch of 4'; it has GPU0, GPU1"),
        ({"ranks": []}, r"no ranks given"),
        ({"collective": "allgather", "parts": [16]}, r"allgather: parts \(16\): expected the rows of each of 4 ranks"),
        ({"collective": "allgather", "parts": [8, -1, 8, 1]}, r"parts \(8, -1, 8, 1\): .* 0 or more"),
        ({"collective": "allgather", "parts": [4, 4, 4, 4.0]}, r"parts \[4, 4, 4, 4.0\]: expected whole numbers"),
        ({"order": "canonical", "shards": 8}, r"shards 8: expected whole numbers, one per rank"),
        ({"collective": "reduce_scatter", "parts": [4, 4, 4, 5]}, r"parts of 17 rows in all, the payload has 16"),
        ({"collective": "scan", "parts": [4, 4, 4, 4]}, r"scan has none; they go with allgather, gather"),
        ({"order": "rank"}, r"order 'rank': expected one of any, canonical"),
        ({"shards": [0, 1, 2, 3, 4]}, r"shards go with order 'canonical', the order is 'any'"),
        ({"order": "canonical", "collective": "scan"}, r"scan in canonical order: expected allreduce"),
        ({"order": "canonical", "shards": [0, 1, 2, 3]}, r"shards \(0, 1, 2, 3\): .* each of 4 ranks and the end"),
        ({"order": "canonical", "shards": []}, r"no shards given; expected the first of each of 4 ranks and the end"),
        ({"order": "canonical", "shards": [0, 2, 1, 3, 4]}, r"never falling"),
        ({"order": "canonical", "shards": [1, 2, 3, 3, 4]}, r"starting at 0"),
        ({"order": "canonical", "shards": [0, 0, 0, 0, 0]}, r"ending at 1 or more"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(PlanError, match=message):
        plan(switch(4), **({"payload_bytes": 64} | changes))


def test_a_machine_without_endpoints_is_refused():
    with pytest.raises(PlanError, match="has no endpoint"):
        plan(Topology("empty", "test", (Device("s", "switch"),), ()), payload_bytes=4)


def test_a_disconnected_machine_names_its_parts():
    devices = tuple(Device(f"GPU{i}", "gpu") for i in range(4))
    links = tuple(Link(a, b, "nvlink", 1, 25.0, 0.7) for a, b in (("GPU0", "GPU1"), ("GPU1", "GPU0"), ("GPU2", "GPU3")))
    with pytest.raises(PlanError, match="falls into 3 pieces: GPU0-1; GPU2; GPU3; name"):
        plan(Topology("islands", "test", devices, links), payload_bytes=4)


def test_an_algorithm_without_routes_is_left_out(monkeypatch):
    monkeypatch.setattr(planner, "candidate_builds", with_one_that_raises(NoRouteError("no path")))
    plain = plan(switch(3), payload_bytes=4444)
    assert "broken" not in {rival.algorithm for rival in ranked(plain, switch(3), topocomm.SUM)}


@pytest.mark.parametrize("error", [PlanError("rank 1 is to fold what it never hears of"), ValueError("a bug")])
def test_other_errors_of_an_algorithm_are_not_swallowed(monkeypatch, error):
    monkeypatch.setattr(planner, "candidate_builds", with_one_that_raises(error))
    with pytest.raises(type(error), match=str(error)):
        plan(switch(3), payload_bytes=4448)


def test_a_search_result_that_fails_its_proof_is_not_swallowed(monkeypatch):
    monkeypatch.setattr(planner, "searched", lambda *_: Searched(binomial_reduce(5, 1, 0), 0.0, ""))
    with pytest.raises(PlanError, match="rank 1 has no output"):
        plan(switch(5), payload_bytes=4452, objective="latency")


@pytest.mark.parametrize(("least_us", "payload_bytes"), [(0.0, 4456), (1e9, 4460)])
def test_an_algorithm_whose_bound_others_beat_is_not_built(monkeypatch, least_us, payload_bytes):
    broken = with_one_that_raises(NoRouteError("no path"), least_us=least_us)
    monkeypatch.setattr(planner, "candidate_builds", broken)
    plan(switch(3), payload_bytes=payload_bytes)
    assert broken.asked == [True] * (least_us == 0.0)


def test_every_plan_is_made_whatever_its_bound(monkeypatch):
    broken = with_one_that_raises(NoRouteError("no path"), least_us=1e9)
    monkeypatch.setattr(planner, "candidate_builds", broken)
    planner.every_plan(switch(3), request_on(switch(3), "allreduce", topocomm.SUM, topocomm.SUM.default_layout(1116)))
    assert broken.asked == [True]


def with_one_that_raises(error, least_us=None):
    """`candidate_builds` with one more, which fails; perhaps with a bound."""
    asked = []

    def broken():
        asked.append(True)
        raise error

    def builds(request, paths):
        yield "broken", broken if least_us is None else BoundedBuild(broken, least_us)
        yield from candidate_builds(request, paths)

    builds.asked = asked
    return builds


def test_of_what_may_well_take_least_the_time_is_found_first(monkeypatch):
    """Others, whose bounds it beats, are not followed then."""
    machine = topocomm.catalog("dgx-2", hosts=2)
    request = request_on(machine, "scan", SUM, SUM.default_layout(16 << 20))
    paths, followed, follow = PathFinder(machine), Counter(), Cost._followed_us

    def counted(cost, most_us):
        followed[wrapped] += 1
        return follow(cost, most_us)

    monkeypatch.setattr(Cost, "_followed_us", counted)
    for wrapped in (True, False):
        builds = list(candidate_builds(request, paths))
        assert any(isinstance(build, LikelyBuild) for _, build in builds)
        every = ((name, build if wrapped else getattr(build, "build", build)) for name, build in builds)
        planner._candidates(every, request, paths)
    assert followed[True] < followed[False]


def test_rounds_respect_ports_where_ranks_share_an_endpoint():
    shared = plan(switch(2), payload_bytes=0, objective="rounds", ranks=["GPU0", "GPU0", "GPU1", "GPU1"])
    busy: dict = {}
    for move in shared.schedule.transfer_list():
        for key in (("out", shared.ranks[move.src], move.round), ("in", shared.ranks[move.dst], move.round)):
            busy[key] = busy.get(key, 0) + 1
    assert max(busy.values()) == 1


@pytest.mark.parametrize(("name", "most"), [("dgx-1-v100", 94.86), ("mi250x", 206.29), ("mi300x-8", 256.0)])
def test_the_most_bytes_a_second(name, most):
    """The bound is met where no single pattern meets it; the certificate is derived again."""
    machine = topocomm.catalog(name)
    made = plan(machine, payload_bytes=1 << 24, objective="throughput")
    assert made.figures.throughput_gb_per_s == pytest.approx(most, rel=1e-3)
    assert made.certificate.gap < 1.001
    topocomm.check_certificate(machine, made)


def test_scratch_is_limited():
    """Flat keeps the values of all other ranks; what may take less is planned otherwise."""
    machine = switch(8)
    free = plan(machine, payload_bytes=16384)
    tight = plan(machine, payload_bytes=16384, max_scratch_bytes=free.figures.scratch_bytes - 1)
    assert free.algorithm == "flat" and tight.algorithm != "flat"
    assert tight.figures.scratch_bytes < free.figures.scratch_bytes
    with pytest.raises(PlanError, match=r"scratch of at most 1 B: every plan for this takes more, the least \d+ B"):
        plan(machine, payload_bytes=16384, max_scratch_bytes=1)


def test_of_many_payloads_bounds_are_made_once_and_each_chosen_plan_is_proved(monkeypatch):
    calls = Counter()

    def counted(name):
        function = getattr(planner, name)

        def count(*args, **options):
            calls[name] += 1
            return function(*args, **options)

        monkeypatch.setattr(planner, name, count)

    counted("bounds_of")
    counted("verify")
    machine = switch(5, gb_per_s=431.0)  # that no other test has
    plans = [plan(machine, payload_bytes=4 * rows) for rows in (1, 100, 10_000)]
    assert calls == {"bounds_of": 1, "verify": 3}
    assert all(each.proof.complete and each.proof.uniform for each in plans)
    assert len({each.certificate.alpha_lower_bound_us for each in plans}) == 1


def test_of_plans_made_before_the_candidates_are_not_kept(monkeypatch):
    """A plan is made once; what it was chosen from, hundreds of MB of many ranks, only of the last ones."""
    searches, candidates = [], planner._candidates
    monkeypatch.setattr(planner, "_candidates", lambda *a, **o: searches.append(a) or candidates(*a, **o))
    machine = switch(4, gb_per_s=433.0)  # that no other test has
    made = [plan(machine, payload_bytes=4 * rows) for rows in (1, 10, 100, 1000)]
    assert len(planner._searches._kept) == 2 and len(searches) == 4
    again = [plan(machine, payload_bytes=4 * rows) for rows in (1, 10, 100, 1000)]
    assert all(one.schedule is other.schedule for one, other in zip(made, again, strict=True)) and len(searches) == 4
    assert ranked(made[-1], machine, topocomm.SUM)[0].algorithm == made[-1].algorithm and len(searches) == 4
    assert ranked(made[0], machine, topocomm.SUM)[0].algorithm == made[0].algorithm and len(searches) == 5
