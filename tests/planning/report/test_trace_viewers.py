"""Traces in the viewers' own parsers: no warning, no error, all slices that were written, and processes by name."""

import json

import numpy as np
import pytest

import topocomm
from tests.planning.report.trace_viewers import Viewers
from topocomm.cli.main import main
from topocomm.planning.report.perfetto import Span, trace_text

pytestmark = pytest.mark.long  # the viewers load for seconds
PAIR = ("--system", "dgx-h100", "--hosts", "2", "--bytes", "16512")


@pytest.fixture(scope="module")
def viewers(tmp_path_factory):
    opened = Viewers(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


def by_command(*words):
    def write(path):
        assert main([*words, "--trace", str(path)]) == 0

    return write


def by_recorder(path):
    def work(comm):
        with comm.trace(path):
            for _ in range(4):
                comm.allreduce(np.arange(2400, dtype=np.float32), topocomm.SUM)
            comm.broadcast(np.arange(3.0), root=1)

    topocomm.run_local(work, ranks=3)


WRITERS = {
    "simulate": by_command("simulate", *PAIR),
    "nccl": by_command("simulate", *PAIR, "--algorithm", "nccl-ring"),
    "switch": by_command("simulate", "--system", "dgx-h100", "--bytes", "1MiB", "--algorithm", "switch-sum"),
    "decode": by_command(
        "simulate", "--system", "dgx-h100", "--model", "llama-3.1-8b", "--context", "64K", "--methods", "tree"
    ),
    "plan": by_command("plan", *PAIR, "--operator", "attention.logsumexp"),
    "pipelined": by_command("plan", "--system", "dgx-h100", "--bytes", "64MiB", "--objective", "throughput"),
    "recorder": by_recorder,
}


@pytest.mark.every_case
@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_viewers_take_traces_without_a_fault(viewers, tmp_path, capsys, writer):
    writer(tmp_path / "trace.json")
    text = (tmp_path / "trace.json").read_text()
    events = json.loads(text)["traceEvents"]
    names = sorted(event["args"]["name"] for event in events if event["name"] == "process_name")
    slices = sum(event["ph"] == "X" for event in events)
    assert slices > 10
    for seen in viewers.seen(text):
        assert seen == {"faults": [], "slices": slices, "processes": names}


def test_what_is_wrong_is_seen(viewers):
    text = trace_text([Span("a", "r", 0, 10, "x", "c", {}), Span("a", "r", 20, 30, "y", "c", {})])
    document = json.loads(text)
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    slices[1]["ts"] = 0.0052  # on the same track, half over the one before
    assert viewers.seen(json.dumps(document))[1] == {
        "faults": ["slice_drop_overlapping_complete_event"],
        "slices": 1,
        "processes": ["a"],
    }
    slices[1]["ph"] = "E"
    assert viewers.seen(json.dumps(document))[0]["faults"] == ["E phase event without a matching B phase event."]
