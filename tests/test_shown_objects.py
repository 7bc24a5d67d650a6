"""What users see of the objects they hold: one line each, and public names at the tab key."""

import numpy as np
import pytest

import attention
import topocomm
from attention import LOGSUMEXP, Partial, Spec
from topocomm import SUM, TOPK, catalog, plan, run_local
from topocomm.calibration.fit_figures import Fit
from topocomm.simulation.runs import simulate_plan

PAIR = catalog("dgx-h100", hosts=2)
MADE = plan(PAIR, payload_bytes=65536)
RUN = simulate_plan(MADE, PAIR)
LINES = [
    (PAIR, "<Topology dgx-h100 x 2 (catalogue): 16 GPUs, 16 NICs, "),
    (
        MADE,
        "<Plan allreduce sum 65536 B on 16 ranks: rails-blocks-2-2, 6 rounds, 480 messages, predicted 6.49 us (",
    ),
    (MADE.schedule, "<Schedule of 16 ranks: 5 rounds, 8 chunks, 240 transfers, 32 combines, in 2 slices>"),
    (RUN, "<Run allreduce 65536 B, ranks 16, by rails-blocks-2-2: 6.62 us, 9.90 GB/s>"),
    (RUN.timeline, "<Timeline of 544 tasks: 6.62 us, "),
    (SUM, "<Operator sum: value [*rows] of any dtype; any order; kernel, triton>"),
    (TOPK(4), "<Operator topk(4): values [*rows, k] of any dtype, payload [*rows, k] int64; any order; "),
    (LOGSUMEXP, "<Operator attention.logsumexp: out [*rows, dim] float32, lse [*rows] float32; any order; "),
    (Fit({"a": 1.5, "b": 2.0}, ("a",), None, 12), "<Fit to 12 rows: a 1.5>"),
    (Spec(), "Spec()"),
    (Spec(causal=True, window=4), "Spec(causal=True, window=4)"),
    (Partial(np.zeros((2, 64)), np.zeros(2)), "<Partial out float64 [2, 64], lse float64 [2]>"),
    (Partial(np.zeros(2), np.zeros(())), "Partial(out=array([0., 0.]), lse=array(0.))"),
]


@pytest.mark.parametrize(("shown", "begins"), LINES, ids=[type(shown).__name__ for shown, _ in LINES])
def test_a_repr_is_one_line(shown, begins):
    assert repr(shown).startswith(begins)
    assert "\n" not in repr(shown)


def test_a_repr_of_a_large_plan_does_not_write_its_schedule():
    large = plan(catalog("dgx-h100", hosts=16), payload_bytes=1 << 20)
    assert ", digest" not in repr(large)
    assert large.digest[:12] in repr(large)


def test_calls_and_communicators_in_one_line_and_at_the_tab_key():
    def look(comm):
        call = comm.prepare("allreduce", like=np.ones(3), operator=SUM)
        handle = call.start(np.ones(3))
        handle.wait()
        lines = repr(comm), repr(call), repr(handle), comm._repr_html_(), call._repr_html_()
        public = [{name for name in dir(held) if not name.startswith("_")} for held in (comm, call, handle)]
        call.free()
        comm.close()
        return (*lines, repr(call), repr(comm)), public

    (lines, public), _ = run_local(look, ranks=2)
    assert lines[0].startswith("<Communicator rank 0 of 2 on ")
    assert lines[1].startswith("<PreparedCall allreduce sum 24 B on 2 ranks: ")
    assert lines[2].startswith("<Handle of call ") and lines[2].endswith(", through>")
    assert "<img" in lines[3] and "<table>" in lines[4]
    assert lines[5].endswith(", freed>") and lines[6].endswith("it was closed>")
    assert "session" not in public[0] and {"allreduce", "rank", "topology"} <= public[0]
    assert public[1:] == [{"free", "input", "plan", "start"}, {"done", "test", "wait"}]


def test_packages_complete_public_names():
    assert dir(attention) == sorted(attention.__all__)
    assert {"candidates", "text", "svg", "save", "load"} <= set(dir(MADE))
    assert {"text", "svg", "html", "endpoints"} <= set(dir(PAIR))
    assert {name for name in dir(topocomm) if not name.startswith("_")} >= set(topocomm.__all__)
