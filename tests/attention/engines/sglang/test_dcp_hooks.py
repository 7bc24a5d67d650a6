"""SGLang's three merges: what goes in and comes out of each hook, and what its own functions are left."""

import pytest
import torch

from attention.engines import substitution
from attention.engines.sglang.dcp_hooks import HOOKS, MODULE
from tests.attention.engines.partials import assert_merged, formula, partials
from tests.attention.engines.sources import parameters
from topocomm import run_local


class Coordinator:
    """SGLang's GroupCoordinator, as far as a merge sees it."""

    def __init__(self, comm):
        self.cpu_group, self.world_size, self.rank_in_group = comm, comm.size, comm.rank


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    monkeypatch.setattr(substitution, "_groups", {})
    monkeypatch.setattr(substitution, "_said", set())


def never(*args, **kwargs):
    raise AssertionError("SGLang's own function was called")


@pytest.mark.parametrize("function", HOOKS)
def test_the_parameters_are_those_of_the_installed_sglang(function):
    assert parameters("sglang", MODULE.removeprefix("sglang."), function) == tuple(
        substitution.parameters_of(HOOKS[function])
    )


CASES = {
    "mha": ("cp_lse_ag_out_rs_mha", {"return_lse": True}, "e", torch.float32),
    "mha 16 bits": ("cp_lse_ag_out_rs_mha", {"return_lse": True}, "e", torch.bfloat16),
    "mla": ("cp_lse_ag_out_rs_mla", {}, 2, torch.bfloat16),
    "mla natural": ("cp_lse_ag_out_rs_mla", {"ctx": None, "is_lse_base_on_e": True}, "e", torch.float16),
    "a2a": ("dcp_a2a_lse_reduce", {}, "e", torch.bfloat16),
    "a2a of base 2": ("dcp_a2a_lse_reduce", {"is_lse_base_on_e": False, "comm_backend": "a2a"}, 2, torch.float32),
}


@pytest.mark.parametrize("case", CASES)
def test_the_merge_of_a_step(case):
    name, given, base, dtype = CASES[case]
    made = partials(2, (5, 6, 8), dtype)
    found = run_local(lambda comm: HOOKS[name](never, *made[comm.rank], Coordinator(comm), **given), ranks=2)
    outs, lses = [x[0] if type(x) is tuple else x for x in found], None
    if "return_lse" in given:
        lses = torch.cat([x[1] for x in found], 1)
    if "mla" in name:  # heads first
        assert all(out.shape == (3, 5, 8) and out.is_contiguous() for out in outs)
        outs = [out.transpose(0, 1) for out in outs]
    assert_merged(torch.cat(outs, 1), lses, formula(made, base), dtype)


def test_mha_without_lse_gives_out_alone():
    made = partials(2, (1, 4, 8), torch.float32)
    found = run_local(lambda comm: HOOKS["cp_lse_ag_out_rs_mha"](never, *made[comm.rank], Coordinator(comm)), ranks=2)
    assert_merged(torch.cat(found, 1), None, formula(made, "e"), torch.float32)


class Alone:
    world_size = 1


class Two:
    world_size = 2


FP8 = torch.zeros(2, 4, 8, dtype=torch.float8_e4m3fn)
LEFT = [
    ("cp_lse_ag_out_rs_mha", Alone(), FP8, {"return_lse": True}),
    ("cp_lse_ag_out_rs_mla", Two(), FP8, {"ctx": "ctx", "is_lse_base_on_e": True}),
    ("dcp_a2a_lse_reduce", Two(), FP8, {"is_lse_base_on_e": False, "cuda_graph_buffers": {}, "comm_backend": "a2a"}),
    (
        "dcp_a2a_lse_reduce",
        Two(),
        FP8.float(),
        {"is_lse_base_on_e": True, "cuda_graph_buffers": None, "comm_backend": "fi_a2a"},
    ),
]


@pytest.mark.parametrize(("name", "group", "out", "given"), LEFT)
def test_sglangs_own_function_gets_all_arguments(name, group, out, given, caplog):
    calls = []

    def own(*args, **kwargs):
        calls.append((args, kwargs))
        return "its result"

    lse = torch.zeros(2, 4)
    assert HOOKS[name](own, out, lse, group, **given) == "its result"
    ((args, kwargs),) = calls
    assert args[0] is out and args[1] is lse and args[2] is group and kwargs == given
    is_asked = group.world_size > 1 and given.get("comm_backend") != "fi_a2a"
    assert ("the engine's own function runs" in caplog.text) is is_asked
