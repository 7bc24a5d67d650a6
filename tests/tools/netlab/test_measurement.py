"""The table of measured times, and bad words."""

from tools.netlab.commands import main
from tools.netlab.measurement import table


def row(way, us, *, is_plan=False):
    middle = sorted(us)[len(us) // 2]
    return {"way": way, "is_plan": is_plan, "bytes": 1 << 20, "us": us, "median_us": middle, "bound_gb_per_s": 0.008}


def test_the_table_sets_all_ways_beside_the_plan():
    rows = [row("Open MPI default", [300e3, 310e3, 290e3]), row("topocomm ring", [150e3, 151e3, 149e3], is_plan=True)]
    lines = table(rows).splitlines()
    assert lines[0] == "1,048,576 bytes; the plan reaches 87.4% of the proven bound"
    assert lines[1].split() == [
        "topocomm",
        "ring",
        "150.00",
        "ms",
        "(",
        "149.00",
        "to",
        "151.00)",
        "1.00x",
        "<-",
        "the",
        "plan",
    ]
    assert lines[2].split()[:3] == ["Open", "MPI", "default"] and "2.00x" in lines[2]


def test_an_unknown_part_is_refused(capsys):
    assert main(["measure", "--parts", "sums,everything"]) == 2
    assert "--parts everything: expected some of sums, two-tier, affine" in capsys.readouterr().err
