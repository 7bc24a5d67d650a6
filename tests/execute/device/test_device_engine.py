"""Every collective on device memory over the recording NCCL, against the same calls in host memory."""

import numpy as np
import pytest
import torch

from attention import LOGSUMEXP
from tests.execute.device_jobs import fake_nccl, run_in, run_on_devices
from tests.machines import hosts, switch
from tests.plans import every_plan
from tests.thinning import alternating
from topocomm import ARGMAX, MAX, SUM, Field, Operator, PlanError, run_local
from topocomm.execute.calls import binding as preparing
from topocomm.execute.device.device_call import DeviceCall
from topocomm.operators.tensors import as_array
from topocomm.topology.links import GROUP_LAUNCH_US

RANKS = [1, 2, 3, 5, 8]
MORE_RANKS = [4, 6, 7, 9, 16]
REPEATS = 3
MATRICES = Operator(
    "product of 2 by 2 matrices",
    (Field("m", ("*rows", "i", "j")),),
    lambda a, b: {"m": a["m"] @ b["m"]},
    {"m": np.eye(2)},
)
"""An operator of one's own, on tensors or arrays alike; it does not commute."""


def matrix(rank, rows=5):
    """Small whole numbers: products are exact."""
    m = np.tile(np.array([[1, 1], [0, 1]], np.float64), (rows, 1, 1))
    m[:, rank % 2, 0] += rank % 3
    return m


def product(ranks):
    m = np.tile(np.eye(2), (5, 1, 1))
    for rank in ranks:
        m = m @ matrix(rank)
    return m


def values(rank, kind):
    """A rank's value, as tensors."""
    draw = torch.Generator().manual_seed(1000 + rank)
    if kind == "float32":
        return torch.randn((7, 3), generator=draw)
    if kind == "bfloat16":
        return torch.randn((37,), generator=draw).to(torch.bfloat16)
    if kind == "int64":
        return torch.randint(-1000, 1000, (11,), generator=draw)
    if kind == "argmax":
        return {"value": torch.randn(9, generator=draw), "index": torch.arange(9) + 100 * rank}
    lse = torch.randn((3, 5), generator=draw) * 10
    lse[rank % 3, ::2] = -torch.inf
    out = torch.where(torch.isinf(lse)[..., None], torch.nan, torch.randn((3, 5, 17), generator=draw))
    return {"out": out, "lse": lse}


KINDS = {"float32": SUM, "bfloat16": SUM, "int64": MAX, "argmax": ARGMAX, "logsumexp": LOGSUMEXP}


def apply(way, x):
    return {name: way(part) for name, part in x.items()} if isinstance(x, dict) else way(x)


def parts(x):
    return list(x.values()) if isinstance(x, dict) else [x]


def assert_same(found, expected, exact):
    for one, other in zip(parts(found), parts(expected), strict=True):
        one, other = (p if isinstance(p, torch.Tensor) else torch.as_tensor(p) for p in (one, other))
        assert one.shape == other.shape and one.dtype == other.dtype
        if exact:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=3e-6, atol=1e-6, equal_nan=True)


def every_collective(comm, kind):
    """Results of all collectives, by name; whatever memory the values are in."""
    op, found = KINDS[kind], {}
    x = values(comm.rank, kind)
    last = comm.size - 1
    uneven = [0] * comm.size
    uneven[-1] += 1
    uneven[0] += len(parts(x)[0]) - 1
    for turn in range(REPEATS):
        found[f"allreduce {turn}"] = comm.allreduce(x, op)
    for root in {0, last}:
        found[f"reduce {root}"] = comm.reduce(x, op, root=root)
        found[f"broadcast {root}"] = comm.broadcast(x, root=root)
    found["reduce_scatter"] = comm.reduce_scatter(x, op)
    found["uneven"] = comm.reduce_scatter(x, op, rows=uneven)
    mine = apply(lambda part: part[: (comm.rank * 2) % len(part)], x)
    found["allgather"] = comm.allgather(mine)
    found["allgather to one"] = comm.gather(mine, root=last)
    found["broadcast of parts"] = comm.scatter(x, root=last, rows=uneven)
    found["allgather of pairs"] = comm.alltoall(x, rows=uneven)
    found["allgather of equals"] = comm.alltoall(x)
    found["scan"], found["exscan"] = comm.scan(x, op), comm.exscan(x, op)
    found["canonical"] = comm.allreduce(x, op, order="canonical")
    return found


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        *alternating(KINDS, RANKS),
        *(pytest.param("float32", ranks, marks=pytest.mark.long) for ranks in MORE_RANKS),
        *(pytest.param("logsumexp", ranks, marks=pytest.mark.long) for ranks in MORE_RANKS),
    ],
)
def test_every_collective_gives_what_it_gives_in_host_memory(kind, ranks):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "launch_us_of", lambda *call, **folded: GROUP_LAUNCH_US)  # by the plans of devices
        host = run_local(lambda comm: every_collective(comm, kind), ranks=ranks)
    on_devices = run_on_devices(lambda comm: every_collective(comm, kind), ranks)
    for expected, found in zip(host, on_devices, strict=True):
        assert expected.keys() == found.keys()
        for name, result in expected.items():
            if result is None:
                assert found[name] is None
            else:
                exact = kind != "logsumexp" or name.startswith(("broadcast", "allgather"))
                if name.startswith(("broadcast", "allgather")):
                    found[name], result = (apply(lambda p: torch.nan_to_num(p), x) for x in (found[name], result))
                assert_same(found[name], result, exact)


def test_all_ranks_have_the_same_bits_and_calls_leave_the_value_alone():
    def body(comm):
        x = values(comm.rank, "logsumexp")
        before = apply(torch.clone, x)
        merged = comm.allreduce(x, LOGSUMEXP)
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(parts(x), parts(before), strict=True))
        return b"".join(as_array(part).tobytes() for part in parts(merged))

    assert len(set(run_on_devices(body, 6))) == 1


@pytest.mark.parametrize("ranks", RANKS)
def test_an_operator_of_ones_own_keeps_the_order_of_ranks(ranks):
    def body(comm):
        x = {"m": torch.tensor(matrix(comm.rank))}
        calls = [comm.allreduce(x, MATRICES), comm.scan(x, MATRICES), comm.exscan(x, MATRICES)]
        return [call["m"].numpy() for call in calls]

    for rank, (whole, scanned, before) in enumerate(run_on_devices(body, ranks)):
        np.testing.assert_array_equal(whole, product(range(ranks)))
        np.testing.assert_array_equal(scanned, product(range(rank + 1)))
        np.testing.assert_array_equal(before, product(range(rank)))


@pytest.mark.parametrize(
    ("machine", "rows"), [(switch(8), 1000), (switch(5), 333), (hosts(2, 4), 4097), (hosts(3, 3), 50)]
)
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "scan"])
def test_every_plan_of_a_machine_runs(machine, rows, collective):
    """All candidates: trees, rings, halving, forests, in slices, with relays, whatever there is."""
    layout = SUM.layout({"value": ((rows,), np.float32)})
    plans = every_plan(machine, collective, SUM, layout)
    ranks = len(machine.endpoints)
    x = [np.random.default_rng(rank).integers(-9, 9, rows).astype(np.float32) for rank in range(ranks)]
    edges = [rows * rank // ranks for rank in range(ranks + 1)]

    def body(comm):
        like, found = torch.tensor(x[comm.rank]), []
        for plan in plans:
            call = comm.prepare(collective, like=like, operator=SUM, plan=plan)
            assert isinstance(call, DeviceCall)
            found.append(call(like).numpy())
            call.free()
        return found

    for rank, found in enumerate(run_on_devices(body, ranks, topology=machine)):
        whole = sum(x[: rank + 1]) if collective == "scan" else sum(x)
        expected = whole[edges[rank] : edges[rank + 1]] if collective == "reduce_scatter" else whole
        assert len(found) == len(plans) > 1
        for result in found:
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("rows", [0, 1, 2, 63, 1025])
def test_odd_sizes(rows):
    def body(comm):
        x = torch.arange(float(rows)) + comm.rank
        scalar = comm.allreduce(torch.tensor(comm.rank), SUM)
        return comm.allreduce(x, SUM), comm.reduce_scatter(x, SUM), scalar, comm.allgather(x)

    for rank, (whole, part, scalar, gathered) in enumerate(run_on_devices(body, 5)):
        expected = torch.arange(float(rows)) * 5 + 10
        assert torch.equal(whole, expected)
        assert torch.equal(part, expected[rows * rank // 5 : rows * (rank + 1) // 5])
        assert scalar.shape == () and scalar.item() == 10
        assert torch.equal(gathered, torch.cat([torch.arange(float(rows)) + other for other in range(5)]))


def test_one_arena_serves_many_calls_and_nothing_is_allocated_in_them():
    with fake_nccl(4) as world:
        from topocomm.execute.device import device_library as device

        devices = device.device_of.devices

        def body(comm):
            call = comm.prepare("allreduce", like=torch.zeros(50), operator=SUM)
            out, before = torch.empty(50), devices[comm.rank].allocated
            for turn in range(200):
                x = torch.full((50,), float(comm.rank + turn))
                assert call(x, out=out) is out
                assert torch.equal(out, torch.full((50,), 4.0 * turn + 6))
            assert devices[comm.rank].allocated == before
            assert devices[comm.rank].bus_id  # the machine's own numbers do not matter here

        run_in(world, body)


def test_values_written_to_the_send_buffer_are_not_packed():
    def body(comm):
        call = comm.prepare("allreduce", like=values(0, "logsumexp"), operator=LOGSUMEXP)
        buffers, found = call.input, []
        for turn in range(3):
            for name, part in values(comm.rank + turn, "logsumexp").items():
                buffers[name].copy_(part)
            found.append((call(buffers), comm.allreduce(values(comm.rank + turn, "logsumexp"), LOGSUMEXP)))
            assert call.input is buffers
        return found

    for pairs in run_on_devices(body, 3):
        for one, other in pairs:
            assert_same(one, other, exact=True)


def test_plans_for_something_else_are_refused():
    plan = every_plan(switch(3), "allreduce", SUM, SUM.default_layout(4))[0]

    def body(comm):
        with pytest.raises(PlanError, match="over 3 ranks"):
            comm.prepare("allreduce", like=torch.zeros(4), operator=SUM, plan=plan)
        return comm.allreduce(torch.ones(2), SUM)

    for result in run_on_devices(body, 2):
        assert torch.equal(result, torch.full((2,), 2.0))
