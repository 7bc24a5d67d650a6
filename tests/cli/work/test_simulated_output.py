"""Simulations as text and as JSON, with a trace; the commands' own tests have what stands in them."""

import json
from argparse import Namespace

import pytest

from tests.cli.test_simulate_command import run
from tests.machines import switch
from topocomm import PlanError
from topocomm.cli.options.sweep_values import Sweep
from topocomm.cli.work.simulated_output import write_simulated, write_sweep
from topocomm.planning.cost.events import simulate
from topocomm.planning.cost.simulated_work import WorkBuilder


def printed(capsys, *words, schema):
    """The JSON document that `topocomm simulate` prints, of this schema."""
    status, out, _ = run(capsys, *words, "--format", "json")
    assert status == 0
    made = json.loads(out)
    assert made["schema"] == schema
    return made


def test_lines_or_the_document_and_the_trace_where_it_is_asked_for(capsys, tmp_path):
    builder = WorkBuilder(("GPU0", "GPU1"))
    builder.send(0, [1], 8)
    timeline = simulate(builder.build(), switch(2))
    write_simulated(Namespace(trace=None, format="text"), timeline, ["a", "b"], lambda: pytest.fail("not asked for"))
    assert capsys.readouterr().out == "a\nb\n"
    path = tmp_path / "trace.json"
    write_simulated(Namespace(trace=str(path), format="json"), timeline, ["a"], lambda: {"runs": []})
    assert json.loads(capsys.readouterr().out) == {"runs": []}
    assert sum(event["ph"] == "X" for event in json.loads(path.read_text())["traceEvents"]) == 3


def test_a_sweep_below_its_title_or_in_its_document(capsys):
    options = {"sweep": Sweep("hosts", (1, 2)), "names": ("ring",)}
    write_sweep(Namespace(**options, format="text"), "title", lambda value, _: 4.0 * value, {})
    assert capsys.readouterr().out.splitlines()[::3] == ["title", "    2       8.00 ring"]
    write_sweep(Namespace(**options, format="json"), "title", lambda value, _: 4.0 * value, {"system": "x"})
    made = json.loads(capsys.readouterr().out)
    assert (made["system"], [row["value"] for row in made["sweep"]["rows"]]) == ("x", [1, 2])

    def never(*_):
        raise PlanError("no way")

    with pytest.raises(PlanError, match="no way"):
        write_sweep(Namespace(**options, format="text"), "title", never, {})
    assert capsys.readouterr().out == ""
