"""Names in any spelling, and what wrong words were meant to be."""

from types import MappingProxyType

import pytest

from topocomm.command_parser import CommandParser, did_you_mean, nearest, respelled, with_suggestion

SYSTEMS = ("dgx-1-v100", "dgx-a100", "dgx-h100", "dgx-h100-taper2", "a100-pcie-2")


def test_names_in_any_spelling():
    assert respelled("DGX_H100", SYSTEMS) == "dgx-h100"
    assert respelled("dgxh100", SYSTEMS) == "dgx-h100"
    assert respelled("dgx-h10", SYSTEMS) is None
    assert respelled("A", ("a", "A")) == "A"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("dgx-h10", "dgx-h100"),
        ("h100", "dgx-h100"),
        ("a100", "a100-pcie-2"),
        ("DGX-H100-TAPER", "dgx-h100-taper2"),
        ("hopper", "dgx-h100"),
        ("raspberry", None),
        ("", None),
    ],
)
def test_the_nearest_name(word, name):
    assert nearest(word, SYSTEMS, {"hopper": "gh200 dgx-h100"}) == name
    assert did_you_mean(word, SYSTEMS, {"hopper": "dgx-h100"}) == (f"; did you mean {name}?" if name else "")


def test_errors_that_list_names_get_the_nearest():
    assert with_suggestion("algorithm 'rng': expected one of planned, ring, tree") == (
        "algorithm 'rng': expected one of planned, ring, tree; did you mean ring?"
    )
    for message in ("algorithm 'xyz': expected one of planned, ring", "no names 'here'", "ring, tree are all"):
        assert with_suggestion(message) == message


class Parser(CommandParser):
    meanings = MappingProxyType({"size": "--bytes", "show": "list"})

    def error(self, message):
        raise SystemExit(f"{self.prog}: {message}")


@pytest.fixture
def parser():
    made = Parser(prog="tool")
    made.add_argument("--loud", action="store_true")
    commands = made.add_subparsers(dest="command", required=True)
    commands.add_parser("list").add_argument("files", nargs="*")
    run = commands.add_parser("run")
    run.add_argument("--bytes", required=True)
    run.add_argument("--shift", type=float)
    run.add_argument("-n", type=int)
    run.add_argument("--format", choices=("text", "nccl-xml"))
    return made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runn"], "tool: argument command: invalid choice: 'runn' (choose from 'list', 'run'); did you mean run?"),
        (["show"], "tool: argument command: invalid choice: 'show' (choose from 'list', 'run'); did you mean list?"),
        (["--bytes", "5", "run"], "tool: unrecognized arguments: --bytes; options come after the command"),
        (["run", "--byts", "5"], "tool run: unrecognized arguments: --byts; did you mean --bytes?"),
        (["run", "--size=5"], "tool run: unrecognized arguments: --size=5; did you mean --bytes?"),
        (["run", "-bytes", "5"], "tool run: unrecognized arguments: -bytes; did you mean --bytes?"),
        (["run", "--nccl-xml"], "tool run: unrecognized arguments: --nccl-xml; did you mean --format nccl-xml?"),
        (["run", "--bytes", "5", "TEXT"], "tool run: unrecognized arguments: TEXT; did you mean --format text?"),
        (["run", "--bytes", "5", "x"], "tool run: unrecognized arguments: x"),
        (
            ["run", "--bytes", "5", "--format", "nccl-xlm"],
            "tool run: argument --format: invalid choice: 'nccl-xlm' (choose from 'text', 'nccl-xml'); "
            "did you mean nccl-xml?",
        ),
    ],
)
def test_errors_name_the_command_and_what_was_meant(parser, words, said):
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(words)
    assert ended.value.code == said


def test_what_is_right_is_read_as_argparse_reads_it(parser):
    args = parser.parse_args(["--loud", "RUN", "--byt", "-7", "--shift", "-.5", "-n4", "--format", "NCCL_XML"])
    assert vars(args) == {
        "loud": True,
        "command": "run",
        "bytes": "-7",
        "shift": -0.5,
        "n": 4,
        "format": "nccl-xml",
    }
    assert parser.parse_args(["list", "--", "--no-option"]).files == ["--no-option"]
    assert parser.parse_args(["list", "Run"]).files == ["Run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hots", "2"], "unrecognized arguments: --hots; did you mean --hosts?"),
        (["--hosts", "2x"], "argument --hosts: expected a whole number, got '2x'; did you mean 2?"),
        (["--us", "1.5us"], "argument --us: expected a number, got '1.5us'; did you mean 1.5?"),
        (["--us", "fast"], "argument --us: expected a number, got 'fast'"),
        (["--size", "-64K"], "argument --size: expected nothing below 0, got -64K"),
        (["--size", "64", "KiB"], "unrecognized arguments: KiB; did you mean --size 64KiB?"),
        (["--size", "64", "times"], "unrecognized arguments: times"),
        (["--names", "a,", "b,", "c"], "unrecognized arguments: b, c; did you mean --names a,b,c?"),
    ],
)
def test_errors_are_one_line_and_status_2(capsys, words, said):
    made = CommandParser(prog="tool")
    for option, kind in (("--hosts", int), ("--us", float), ("--size", None), ("--names", None)):
        made.add_argument(option, type=kind, metavar="A,B,..." if option == "--names" else None)
    with pytest.raises(SystemExit) as ended:
        made.parse_args(words)
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", f"tool: error: {said}\n")
