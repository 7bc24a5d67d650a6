"""The ring of a rank's last calls and its file."""

import json
import os
import subprocess
import sys
import tempfile
import time

from topocomm.execute.liveness.recorder import KEPT, KEPT_S, TOLD, Recorder, default_directory
from topocomm.execute.transports.transport import AGREEMENT_TAG, GATHER_TAG


def test_the_last_calls_are_kept_and_older_ones_are_not_known():
    recorder = Recorder()
    for number in range(1, KEPT + 11):
        assert recorder.begin(100 + number) == number
    assert recorder.tag(10) == recorder.tag(KEPT + 11) == 0
    assert recorder.tag(11) == 111
    assert recorder.tag(KEPT + 10) == 100 + KEPT + 10
    assert recorder.latest() == {n: 100 + n for n in range(KEPT + 11 - TOLD, KEPT + 11)}


def test_the_first_calls_of_a_communicator_are_told_as_far_as_they_are_there():
    recorder = Recorder()
    assert recorder.latest() == {}
    recorder.begin(7)
    assert recorder.latest() == {1: 7}


def test_the_calls_of_the_program_are_counted_without_agreements_and_exchanges():
    recorder = Recorder()
    tags = [AGREEMENT_TAG, 16, 16, AGREEMENT_TAG, GATHER_TAG, 18, 16]
    numbers = [recorder.begin(tag) for tag in tags]
    assert [recorder.users_number(number) for number in numbers] == [1, 1, 2, 3, 3, 3, 4]
    for _ in range(KEPT):
        recorder.begin(AGREEMENT_TAG)
        last = recorder.begin(16)
    assert recorder.users_number(last) == 4 + KEPT
    assert recorder.users_number(last - KEPT) == 4 + KEPT // 2


def test_a_record_is_a_header_and_a_line_a_call(tmp_path):
    recorder = Recorder()
    for tag in (16, 18, 16):
        recorder.begin(tag)
    path = recorder.write(tmp_path / "new", {"rank": 5, "error": "DeadlineError"}, {16: "a", 18: "b"}.__getitem__, {2})
    assert path.parent == tmp_path / "new"
    assert path.name.startswith("rank5-pid")
    head, *calls = map(json.loads, path.read_text().splitlines())
    assert head == {"schema": "topocomm.record/1", "rank": 5, "error": "DeadlineError"}
    assert [(call["number"], call["call"], call["state"]) for call in calls] == [
        (1, "a", "through"),
        (2, "b", "open"),
        (3, "a", "through"),
    ]
    assert all(call["began_s_before_failure"] >= 0 for call in calls)


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert Recorder().write(tmp_path / "file", {}, str, set()) is None


def test_old_records_of_processes_that_are_gone_are_removed_from_the_default_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(timeout=60)
    names = [
        f"rank0-pid{ended.pid}.jsonl",
        f"rank1-pid{os.getppid()}.jsonl",
        f"rank2-pid{ended.pid}.jsonl",
        "rank3.jsonl",
    ]
    for folder in (default_directory(), tmp_path / "own"):
        folder.mkdir()
        for name in names:
            (folder / name).write_text("")
            if "rank2" not in name:  # which is new
                os.utime(folder / name, (time.time() - KEPT_S - 60,) * 2)
        written = Recorder().write(folder, {"rank": 9}, str, set())
        left = {path.name for path in folder.iterdir()} - {written.name}
        assert left == set(names[1:] if folder == default_directory() else names)
