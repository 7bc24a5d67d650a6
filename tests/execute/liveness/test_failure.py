"""What a failure leaves behind."""

import json
from types import SimpleNamespace

from topocomm import RankFailedError
from topocomm.execute.liveness.failure import gone_with, write_record
from topocomm.execute.liveness.recorder import Recorder


def test_ranks_are_gone_by_the_transport_and_by_what_an_error_reports():
    transport = SimpleNamespace(rank=1, failed=lambda: {1: "itself", 4: "has ended"})
    error = RankFailedError("stopped")
    assert gone_with(transport, error) == {4}
    error.report = {"kind": "RankFailedError", "rank": 2}
    assert gone_with(transport, error) == {2, 4}
    error.report = {"kind": "DeadlineError", "rank": 2}
    assert gone_with(transport, error) == {4}


def test_the_record_says_which_calls_are_open(tmp_path):
    recorder = Recorder()
    numbers = [recorder.begin(tag) for tag in (16, 18, 20)]
    waiting = SimpleNamespace(
        transport=SimpleNamespace(rank=0, size=2, name="threads"),
        recorder=recorder,
        under_way=[SimpleNamespace(number=numbers[0])],
        describe=lambda tag: f"call with tag {tag}",
    )
    error = ValueError("planted")
    write_record(waiting, tmp_path, error)
    (path,) = tmp_path.iterdir()
    header, *calls = map(json.loads, path.read_text().splitlines())
    assert (header["error"], header["message"], header["calls"]) == ("ValueError", "planted", 3)
    assert [call["state"] for call in calls] == ["open", "through", "open"]
    assert str(path) in error.__notes__[0]
