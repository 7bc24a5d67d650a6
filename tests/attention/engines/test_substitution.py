"""Our merge in the place of an engine's function: where it serves, and what is said where it does not."""

import logging

import pytest
import torch

from attention import Partial
from attention.engines import substitution
from attention.engines.substitution import combined, misfit, say_once
from tests.attention.engines.partials import assert_merged, formula, partials
from topocomm import DeadlineError, OperatorError, TopocommError, run_local


class Coordinator:
    """What an engine gives as the group."""

    def __init__(self, group, size):
        self.cpu_group, self.world_size = group, size


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    monkeypatch.setattr(substitution, "_groups", {})
    monkeypatch.setattr(substitution, "_said", set())


def on_ranks(body, ranks=2):
    return run_local(lambda comm: body(comm.rank, Coordinator(comm, ranks)), ranks=ranks)


@pytest.mark.parametrize("natural", [True, False])
def test_heads_first_or_rows_first(natural):
    made = partials(2, (5, 6, 4), torch.bfloat16)

    def body(rank, group):
        plain = combined("f", Partial(*made[rank]), group, natural=natural, return_lse=True)
        turned = combined("f", Partial(*made[rank]), group, natural=natural, heads_first=True)
        assert turned.lse is None and torch.equal(turned.out, plain.out)
        assert turned.out.transpose(0, 1).is_contiguous()
        return plain

    found = on_ranks(body)
    whole = torch.cat([x.out for x in found], 1), torch.cat([x.lse for x in found], 1)
    assert_merged(*whole, formula(made, "e" if natural else 2), torch.bfloat16)


def told(caplog, partial, group=None, times=2):
    """What is logged when the merge is asked for some times, and given by none."""
    group = group or Coordinator(None, 2)
    with caplog.at_level(logging.WARNING, "attention.engines"):
        for _ in range(times):
            assert combined("f", partial, group, natural=True) is None
    return [record.getMessage() for record in caplog.records]


def test_a_dtype_that_is_not_taken_is_told_once(caplog):
    out = torch.zeros(2, 4, 8, dtype=torch.float8_e4m3fn)
    (text,) = told(caplog, Partial(out, torch.zeros(2, 4)))
    assert text == (
        "f: the engine's own function runs, not topocomm's: it takes float32, bfloat16 and float16, and out is "
        "torch.float8_e4m3fn"
    )


def test_other_axes_and_devices_are_told(caplog):
    assert "[2, 1, 4, 8]" in told(caplog, Partial(torch.zeros(2, 1, 4, 8), torch.zeros(2, 4)))[0]
    assert "out is on meta" in told(caplog, Partial(torch.zeros(2, 4, 8, device="meta"), torch.zeros(2, 4)))[1]


def test_a_group_without_host_memory_is_told(caplog, monkeypatch):
    calls = []

    def refuses(group):
        calls.append(group)
        raise TopocommError("the group has only the backend cuda:nccl")

    monkeypatch.setattr(substitution, "head_combine", refuses)
    (text,) = told(caplog, Partial(torch.zeros(2, 4, 8), torch.zeros(2, 4)))
    assert "only the backend cuda:nccl" in text and len(calls) == 1


def test_a_rank_that_does_not_come_is_no_reason_to_go_on(monkeypatch):
    def waits(group):
        raise DeadlineError("still waiting for rank 1")

    monkeypatch.setattr(substitution, "head_combine", waits)
    with pytest.raises(DeadlineError):
        combined("f", Partial(torch.zeros(2, 4, 8), torch.zeros(2, 4)), Coordinator(None, 2), natural=True)


def test_heads_that_cannot_be_shared_out_evenly():
    with pytest.raises(OperatorError, match="f: heads must be a multiple of the 3 ranks of the group, got 4"):
        combined("f", Partial(torch.zeros(2, 4, 8), torch.zeros(2, 4)), Coordinator(None, 3), natural=True)


class OnGpu:
    """A HeadCombine for values on a GPU, by what it says of them."""

    def __init__(self, planned, recorded):
        self._planned, self._recorded, self.runs = planned, recorded, 0

    def is_planned(self, out):
        return self._planned

    def is_recorded(self, out):
        return self._recorded

    def run(self, partial, base, empty, target, *, return_lse):
        self.runs += 1
        return Partial(target, None)


@pytest.mark.parametrize(
    ("capturing", "planned", "recorded", "text"),
    [
        (False, False, True, None),
        (True, True, True, None),
        (True, False, True, "a graph is captured, and no call of 2 rows came before it"),
        (False, True, False, "reach each other by host memory only"),
    ],
)
def test_on_gpus(caplog, monkeypatch, capturing, planned, recorded, text):
    group, combine = Coordinator(None, 2), OnGpu(planned, recorded)
    monkeypatch.setattr("attention.gpu.placement._held", lambda x: True)
    monkeypatch.setattr(substitution, "capturing", lambda device: capturing)
    monkeypatch.setattr(substitution, "head_combine", lambda group: combine)
    partial = Partial(torch.zeros(2, 4, 8), torch.zeros(2, 4))
    if capturing:
        assert "no call came before it" in told(caplog, partial, group)[0]
        caplog.clear()
        substitution._groups[group] = combine
    if text is None:
        assert combined("f", partial, group, natural=True).out.shape == (2, 2, 8) and combine.runs == 1
    else:
        assert text in told(caplog, partial, group)[0] and not combine.runs


def test_other_parameters_are_named():
    def function(out, lse, group=None, *, graph=False):
        pass

    assert misfit(function, lambda own, out, lse, group, graph: None) is None
    text = misfit(function, lambda own, out, lse, group: None)
    assert "has the parameters (out, lse, group, graph), and those known are (out, lse, group)" in text


def test_a_reason_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, "attention.engines"):
        for text in ("a", "b", "a"):
            say_once(text)
    assert [record.getMessage() for record in caplog.records] == ["a", "b"]
