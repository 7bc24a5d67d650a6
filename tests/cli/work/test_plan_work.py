"""A saved plan in text: what would be planned for the same request now stands beside it."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.plans import every_plan, request_on
from topocomm import MAX, SUM, catalog, plan
from topocomm.cli.main import main
from topocomm.operators.builtin import VALUE
from topocomm.planning.planner import make_plan

H100 = ("--system", "dgx-h100")


def shown(capsys, made, file, *words):
    made.save(file)
    status = main(["plan", *words, "--plan", str(file)])
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    assert all(len(line) <= 80 for line in captured.out.splitlines())
    return " ".join(captured.out.split())


def test_a_plan_that_is_not_the_best_says_so(capsys, tmp_path):
    made = every_plan(catalog("dgx-h100"), "allreduce", SUM, SUM.default_layout(4096))
    best, worst = made[0], made[-1]
    text = shown(capsys, worst, tmp_path / "plan.json", *H100)
    own = worst.figures.predicted_us
    assert (
        f"why kept as it is, not the least time with these bytes of {len(made)} algorithms that fit: {own:.2f}" in text
    )
    share = best.figures.predicted_us / own
    assert f"others {best.algorithm} {best.figures.predicted_us:.2f} us ({share:.2f}x)" in text
    assert "kept as it is" not in shown(capsys, best, tmp_path / "plan.json", *H100)


def test_without_its_operator_the_runners_up_are_not_known(capsys, tmp_path):
    made = replace(plan(catalog("dgx-h100"), payload_bytes=64, operator=MAX), operator="mine")
    text = shown(capsys, made, tmp_path / "plan.json", *H100)
    assert "others not known: unknown operator 'mine'; installed packages register" in text


def test_rows_of_another_type_have_no_runners_up(capsys, tmp_path):
    layout = SUM.layout({VALUE: ((8,), np.float64)})
    made = make_plan(catalog("dgx-h100"), request_on(catalog("dgx-h100"), "allreduce", SUM, layout))
    text = shown(capsys, made, tmp_path / "plan.json", *H100)
    assert "others not known: a row of this plan has 8 B, one of sum as it is planned here 4 B" in text


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-1-v100"])
def test_slices_of_a_pipelined_plan_are_told(capsys, system):
    words = ["plan", "--system", system, "--bytes", "64MiB", "--objective", "throughput", "--collective", "broadcast"]
    assert main(words) == 0
    text = " ".join(capsys.readouterr().out.split())
    main([*words, "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    repeat = document["schedule"]["repeat"]
    assert f"slices {repeat['count']} of every chunk, each {repeat['stagger_rounds']} round" in text
    assert "each," not in text


WITHOUT_ROWS = """
from topocomm import Field, Operator

STATE = Operator("state", (Field("s", ("n",), "f8"),), lambda a, b: {"s": a["s"] + b["s"]}, 0, default_dims={"n": 23})
"""


def test_an_operator_of_ones_own_is_planned_beside_its_runners_up(capsys, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(WITHOUT_ROWS)
    words = ["plan", *H100, "--operator", f"{file}:STATE"]
    assert main([*words, "--bytes", "184"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("allreduce state, 184 B, 8 ranks") and "others not known" not in text
    assert main(words) == 0
    assert "184 bytes are taken, one value of operator 'state'" in capsys.readouterr().err
    assert main([*words, "--sizes", "8:4K:4"]) == 0
    assert "best: flat" in capsys.readouterr().out


def test_a_plan_in_words_loads_neither_pictures_nor_the_checker():
    """They take a tenth of the command's time."""
    needless = ["xml.sax.saxutils", "topocomm.planning.report.plan_svg", "topocomm.topology.draw.notebook"]
    needless.append("topocomm.planning.certificate_checker.check_certificate")
    program = (
        "import sys, topocomm.cli.main as m; m.main(['plan', '--system', 'dgx-h100', '--bytes', '64']); "
        f"sys.exit(', '.join(name for name in {needless} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("allreduce sum, 64 B"), done.stderr
