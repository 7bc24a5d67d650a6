"""DDP's gradients on our plans while its group stays gloo: the results of DDP alone, and errors on every rank."""

import re
from pathlib import Path

import pytest

from tests.torch_jobs import by_hand, said, torchrun
from topocomm import TopocommError, run_local

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from topocomm.torch import HookState, ddp_hook  # noqa: E402

PROGRAMS = Path(__file__).parent / "programs"
NEAR = {2: {"rtol": 0.02, "atol": 0.01}}
"""By bytes of a number: sums of short floats are rounded more than once."""
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def gradient(rank, dtype=torch.float32, items=1000):
    return torch.randn(items, generator=torch.Generator().manual_seed(rank)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["any", "canonical"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_bucket_becomes_the_mean_in_place(ranks, order, dtype):
    def work(comm):
        value = gradient(comm.rank, dtype)
        state = HookState(comm, order=order)
        found = state.average(value).wait()
        assert found.data_ptr() == value.data_ptr()
        return [value, state.average(gradient(comm.rank, dtype)).wait()]

    results = run_local(work, ranks=ranks)
    mean = sum(gradient(rank, dtype).double() for rank in range(ranks)) / ranks
    for value, again in results:
        torch.testing.assert_close(value, mean.to(dtype), **NEAR.get(dtype.itemsize, {}))
        assert torch.equal(value, results[0][0]) and torch.equal(value, again)


def test_short_values_on_the_wire():
    def work(comm):
        return HookState(comm, wire_dtype=torch.bfloat16).average(gradient(comm.rank)).wait()

    halves = [(gradient(rank) / 2).bfloat16() for rank in range(2)]
    for value in run_local(work, ranks=2):
        assert value.dtype == torch.float32 and torch.equal(value, sum(halves).float())


def test_buckets_under_way_at_once():
    def work(comm):
        state = HookState(comm)
        values = [torch.full((n,), float(comm.rank)) for n in (1, 100_000, 3, 50_000)]
        return [future.wait()[-1].item() for future in [state.average(value) for value in values]]

    assert run_local(work, ranks=3) == [[1.0] * 4] * 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda comm: ddp_hook("gloo", None), "expected a topocomm.Communicator as the state, got str"),
        (lambda comm: HookState(comm, order="some"), "order 'some': expected one of any, canonical"),
        (lambda comm: HookState(comm, wire_dtype=torch.int8), "wire_dtype torch.int8: expected a floating"),
    ],
)
def test_a_state_that_is_none_says_what_is_expected(make, words):
    with pytest.raises(TopocommError, match=words):
        run_local(make, ranks=1)


@pytest.fixture
def model():
    """A model in DDP, alone in a gloo group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # torch's own, of its earlier names
def test_an_error_is_raised_by_backward_as_what_it_is(model):
    def work(comm):
        model.register_comm_hook(comm, ddp_hook)
        model(torch.ones(1, 4)).sum().backward()
        assert torch.equal(model.module.weight.grad, torch.ones(2, 4))
        comm.close()
        with pytest.raises(TopocommError, match="rank 0: this communicator takes no call now: it was closed"):
            model(torch.ones(1, 4)).sum().backward()

    run_local(work, ranks=1)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_hooked_training_gives_what_plain_training_gives(ranks):
    job = torchrun(ranks, [PROGRAMS / "gradients.py"], timeout_s=280)
    assert job.returncode == 0, job.stderr[-3000:]
    assert said(job.stdout) == dict.fromkeys(range(ranks), "ok")


@pytest.mark.long
@pytest.mark.parametrize(
    ("case", "kind", "words"),
    [
        ("one_dies", "RankFailedError", "rank 1"),
        ("one_raises", "RankFailedError", "rank 1 failed: SystemError: out of paper"),
        ("one_is_late", "DeadlineError", r"waiting for rank 1 .*after 2 s"),
        ("dtypes_differ", "MismatchError", r"ranks 0, 2: float16 .*rank 1: bfloat16"),
    ],
)
def test_backward_of_the_others_names_the_rank(case, kind, words):
    jobs = by_hand(3, [PROGRAMS / "gradient_errors.py", case], timeout_s=120, env={"TOPOCOMM_TIMEOUT_S": "2"})
    for rank in (0, 2):
        stdout, stderr, status = jobs[rank]
        assert status == 0, stderr[-2000:]
        assert re.search(rf"^\[{rank}\] {kind}: rank {rank}.*{words}", stdout, re.MULTILINE), (stdout, stderr[-2000:])
    assert jobs[1][2] == {"one_dies": 7, "one_raises": 1}.get(case, 0)
