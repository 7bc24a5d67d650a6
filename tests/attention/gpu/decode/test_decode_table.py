"""The rules by which the decode kernel is cut, and how keys are split over a GPU."""

import itertools

import pytest
import torch

from attention import Spec
from attention.gpu.decode import decode
from attention.gpu.decode.decode_table import (
    FORMS,
    MOST_WAVES,
    WIDTHS,
    Cut,
    by_rule,
    problem_of,
    rows_of_program,
    splits_for,
)
from attention.gpu.limits import SHARED_KIB, generation_of
from tests.attention.gpu.inputs import made

ARCHS = ("sm_80", "sm_89", "sm_90", "sm_100", "gfx90a", "gfx942", "interpreter")


@pytest.mark.parametrize("arch", ARCHS)
def test_every_problem_has_a_cut_whose_stages_fit(arch):
    """Keys and values in flight, and the queries, in shared memory; the compile report knows the exact figures."""
    room = SHARED_KIB[generation_of(arch)] << 10
    for itemsize, width, rows, form, shared in itertools.product(
        (2, 4), WIDTHS, (1, 17, 64, 2048), FORMS, (False, True)
    ):
        if itemsize == 4 and width > 256:
            continue
        problem = problem_of(arch, itemsize, width, rows, form=form, shared=shared)
        cut = by_rule(problem)
        ahead = (cut.num_stages - 1) // 2 if form == "paged" else cut.num_stages - 1
        held = cut.block_n * max(1, ahead) * (1 if shared else 2)
        if not arch.startswith("sm_"):
            held = cut.block_n  # keys and values one after the other
        assert held * width * itemsize <= room, (problem, cut)
        assert cut.block_n >= 16 and cut.num_warps in (4, 8, 16)


def test_rows_of_a_program_are_powers_of_two_that_registers_hold():
    found = {
        (rows, width): rows_of_program(rows, 2, width, "paged") for rows in (1, 16, 17, 33, 500) for width in (128, 192)
    }
    assert found == {
        (1, 128): 16, (16, 128): 16, (17, 128): 32, (33, 128): 64, (500, 128): 64,
        (1, 192): 16, (16, 192): 16, (17, 192): 32, (33, 192): 32, (500, 192): 32,
    }  # fmt: skip
    assert rows_of_program(500, 4, 128, "plain") == rows_of_program(500, 2, 128, "full") == 32


@pytest.mark.parametrize("slots", [8, 216, 264, 304])
def test_splits_fill_the_gpu_evenly(slots):
    """No wave of programs is left so empty that another number of splits would be much faster."""
    for programs in (1, 2, 8, 24, 64, 100, 264, 270, 1000):
        splits = splits_for(1 << 20, programs, slots)
        wave_time = -(-programs * splits // slots) / splits  # of one wave of programs that have all keys
        least = programs / slots  # if the work could be cut at will
        assert wave_time <= 1.25 * least, (programs, splits)
        assert programs * splits <= max(programs, (MOST_WAVES + 1) * slots), (programs, splits)
    assert splits_for(1 << 20, 8, 264) == 33  # all 264 places: one token, 8 key heads, on 132 multiprocessors
    assert splits_for(1 << 20, 64, 264) == 4  # 256 of 264 places again, where five splits would need a second wave


def test_few_keys_are_not_split():
    assert splits_for(0, 1, 264) == splits_for(256, 1, 264) == 1
    assert splits_for(257, 1, 264) == 2


@pytest.mark.parametrize(
    ("spec", "where", "form"),
    [
        (Spec(scale=0.5), {}, "plain"),
        (Spec(causal=True), {}, "usual"),
        (Spec(), {"kv_lengths": [3]}, "usual"),
        (Spec(causal=True), {"kv_lengths": [3], "block_tables": [[0]]}, "paged"),
        (Spec(), {"k_scales": [1.0]}, "paged"),
        (Spec(causal=True, window=2), {"kv_lengths": [3]}, "full"),
        (Spec(softcap=1.0), {}, "full"),
        (Spec(alibi_slopes=(0.5,)), {}, "full"),
        (Spec(), {"kv_mask": [True] * 4}, "full"),
        (Spec(causal=True), {"q_positions": [3], "kv_positions": [0, 1, 2, 3]}, "full"),
    ],
)
def test_the_form_of_a_call(monkeypatch, spec, where, form):
    asked = []
    monkeypatch.setattr(decode, "cut_for", lambda problem: asked.append(problem.form) or Cut(16, 4, 1))
    given = {name: torch.tensor(values) for name, values in where.items()}
    q, k, v = made(1, 1, 1, 1, 1, 4, 16, 16)
    decode.decode_partial(q, k, v, spec=spec, **given)
    assert asked == [form]
