"""Results of several calls, perhaps on several machines, become one document."""

import json

import pytest


@pytest.fixture
def filled(tools, tmp_path, monkeypatch):
    """filled(call, part, **data) leaves a part of a call that ended."""

    def fill(call, name, **data):
        monkeypatch.setenv("RUN_CALL", call)
        part = tools.results.Results(tmp_path, name, name.title())
        for key, value in data.items():
            part.data(key, value)
        part.check("a check", None)
        part.end()

    return fill


def test_each_call_has_a_file_of_its_own_and_the_document_has_all(tools, filled, tmp_path):
    filled("1", "facts1", card="H100")
    filled("2", "bench_kernels rules", goals=[["x", ">= 80% of read", "79.0%", "no", "read 1"]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results-1.json", "results-2.json", "results.md"]
    assert list(json.loads((tmp_path / "results-2.json").read_text())) == ["bench_kernels rules"]
    document = (tmp_path / "results.md").read_text()
    assert document.startswith("# Figures of one H100, 20") and "2 checks, 0 failed." in document
    assert document.index("## What is to be reached") < document.index("## Facts1") < document.index("## Bench_Kernels")
    assert "batch 1 | >= 80% of read | 79.0% | MISS |" in document and "different cards" not in document


def test_files_of_other_machines_are_merged(tools, filled, tmp_path, monkeypatch, capsys):
    filled("1", "facts1", card="H100")
    other = tmp_path / "other"
    monkeypatch.setenv("RUN_CALL", "4")
    tools.results.Results(other, "facts4", "Facts").data("card", "H200")
    (other / "results-4.json").rename(tmp_path / "results-4.json")
    monkeypatch.setattr("sys.argv", ["results.py", str(tmp_path)])
    assert tools.results.main() == 1  # the part of call 4 never ended
    document = (tmp_path / "results.md").read_text()
    assert document.startswith("# Figures of one H100 and one H200") and "Calls ran on different cards" in document
    monkeypatch.setattr("sys.argv", ["results.py", str(tmp_path), "facts1"])
    assert tools.results.main() == 0  # a call answers for its own parts
    assert "facts4: did not come to its end" not in capsys.readouterr().out.splitlines()[-1]


def test_the_later_of_two_counts(tools, filled, tmp_path):
    filled("1", "facts", card="old")
    filled("2", "facts", card="new")
    older = json.loads((tmp_path / "results-2.json").read_text())
    assert tools.results.read(tmp_path)["facts"]["data"] == {"card": "new"}
    older["facts"]["began"] = "2001-01-01T00:00:00+00:00"
    (tmp_path / "results-2.json").write_text(json.dumps(older))
    assert tools.results.read(tmp_path)["facts"]["data"] == {"card": "old"}


def test_a_part_that_goes_on_keeps_what_it_had(tools, filled, tmp_path):
    filled("2", "kernels", goals=[["x", "-", "1", "yes", "merge"]])
    part = tools.results.Results(tmp_path, "kernels", "Kernels", goes_on=True)
    assert part.goals_so_far() == [tools.targets.Goal("x", "-", "1", "yes", "merge")]
    part.note("more")
    kept = tools.results.read(tmp_path)["kernels"]
    assert (
        kept["data"]["goals"] and [block["text"] for block in kept["blocks"]] == ["more"] and len(kept["checks"]) == 1
    )


def test_a_process_whose_clocks_are_wrong_has_time(tools, monkeypatch):
    """Else it would have been there for longer than it may take, and would measure nothing."""
    for now, age in ((1e9, 60.0), (0.0, 0.0)):
        monkeypatch.setattr(tools.results.time, "clock_gettime", lambda _, now=now: now)
        assert tools.results.age_s() == age
