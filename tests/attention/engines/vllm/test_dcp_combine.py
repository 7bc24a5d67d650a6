"""vLLM's contract of `dcp_combine`: arguments, empty shards, its own function where ours does not serve."""

import functools
import inspect

import pytest
import torch

from attention.engines import substitution
from attention.engines.vllm.dcp_combine import REPLACED, dcp_combine, empty_rows, in_place_of
from tests.attention.engines.partials import assert_merged, formula, partials
from tests.attention.engines.sources import parameters
from topocomm import run_local


class Coordinator:
    """vLLM's GroupCoordinator, as far as a merge sees it."""

    def __init__(self, comm):
        self.cpu_group, self.world_size, self.rank_in_group = comm, comm.size, comm.rank


PARAMETERS = substitution.parameters_of(dcp_combine)


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    monkeypatch.setattr(substitution, "_groups", {})
    monkeypatch.setattr(substitution, "_said", set())


def never(*args, **kwargs):
    raise AssertionError("vLLM's own function was called")


@pytest.mark.parametrize("function", REPLACED)
def test_the_parameters_are_those_of_the_installed_vllm(function):
    assert parameters("vllm", "v1.attention.ops.dcp", function) == tuple(PARAMETERS)


@pytest.mark.parametrize("natural", [True, False])
def test_the_merge_of_a_step(natural):
    made = partials(3, (7, 6, 8), torch.bfloat16)
    # of each rank the keys of sequences of 1, 2 and 1 rows; three rows pad the batch to the size of a graph
    lens, starts = ([4, 0, 9], [0, 5, 0], [1, 1, 1]), torch.tensor([0, 1, 3, 4], dtype=torch.int32)

    def on_rank(comm):
        out, lse = made[comm.rank]
        given = {"seq_lens": torch.tensor(lens[comm.rank], dtype=torch.int32), "query_start_loc": starts}
        call = in_place_of(functools.partial(named("cp_lse_ag_out_rs"), is_lse_base_on_e=natural))
        plain = call(out, lse, Coordinator(comm), **given)
        merged = call(out, lse, Coordinator(comm), return_lse=True, **given)
        assert type(merged) is tuple and torch.equal(merged[0], plain)
        return merged

    found = run_local(on_rank, ranks=3)
    empties = [empty_rows(7, torch.tensor(each), starts).numpy() for each in lens]
    whole = (torch.cat([x[i] for x in found], 1) for i in range(2))
    assert_merged(*whole, formula(made, "e" if natural else 2, empties), torch.bfloat16)


def named(name, function=never, parameters=PARAMETERS):
    """A function with the name and the parameters of one of vLLM's."""

    def stand_in(*args, **kwargs):
        return function(*args, **kwargs)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    stand_in.__name__ = stand_in.__qualname__ = name
    stand_in.__signature__ = inspect.Signature([inspect.Parameter(each, kind) for each in parameters])
    return stand_in


def test_a_merge_with_other_parameters_stays(caplog):
    kept = functools.partial(named("cp_lse_ag_out_rs", parameters=("out", "lse")), is_lse_base_on_e=False)
    assert in_place_of(kept) is kept
    assert "vLLM's merge stays as it is: cp_lse_ag_out_rs has the parameters (out, lse)" in caplog.text


def test_rows_without_keys():
    starts = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    found = empty_rows(7, torch.tensor([3, 9, 0], dtype=torch.int32), starts)
    assert found.tolist() == [False, False, True, True, True, True, True]
    assert empty_rows(2, torch.tensor([], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)).all()


def test_an_argument_bound_by_vllm_stays_bound():
    ours = in_place_of(functools.partial(named("dcp_a2a_lse_reduce"), cp_group="g", is_lse_base_on_e=False))
    assert ours.func is dcp_combine and ours.keywords == {"cp_group": "g", "is_lse_base_on_e": False}
    assert in_place_of(ours) is ours


def test_other_merges_of_vllm_stay():
    direct = functools.partial(named("cp_lse_ag_out_rs"), object())
    for kept in (named("cp_lse_ag_out_ar"), direct, functools.partial(named("cp_lse_ag_out_ar"), cp_group=None)):
        assert in_place_of(kept) is kept


class Alone:
    world_size = 1


class Two:
    world_size = 2


@pytest.mark.parametrize(
    ("group", "out", "given"),
    [
        (Alone(), torch.zeros(2, 4, 8), {}),
        (Two(), torch.zeros(2, 4, 8, dtype=torch.float8_e5m2), {"return_lse": True}),
        (Two(), torch.zeros(2, 4, 8), {"seq_lens": torch.zeros(2)}),  # it raises what it raises
    ],
)
def test_vllms_own_function_gets_all_arguments(group, out, given):
    calls = []

    def own(*args, **kwargs):
        calls.append((args, kwargs))
        return "its result"

    lse = torch.zeros(2, 4)
    assert in_place_of(named("dcp_a2a_lse_reduce", own))(out, lse, group, ctx="ctx", **given) == "its result"
    ((args, kwargs),) = calls
    assert args[0] is out and args[1] is lse and args[2] is group
    wanted = {"ctx": "ctx", "return_lse": False, "is_lse_base_on_e": True, "seq_lens": None, "query_start_loc": None}
    assert kwargs == wanted | given
