"""`topocomm order`: its formats, its gain on stderr, and bad usage."""

import json

import pytest

from topocomm.cli.main import main

CLUSTER = ("--system", "dgx-h100", "--hosts", "2")
ROUND_ROBIN = ",".join(f"h{host}/GPU{gpu}" for gpu in range(8) for host in range(2))


def run(capsys, *words):
    try:
        status = main(["order", *words])
    except SystemExit as exit_:
        status = exit_.code
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_order_goes_to_stdout_and_the_gain_to_stderr(capsys):
    words = (*CLUSTER, "--ranks", ROUND_ROBIN, "--objective", "throughput")
    status, out, err = run(capsys, *words)
    assert (status, err.count("\n")) == (0, 1)
    assert err.startswith("allreduce 1048576 B, objective throughput: ")
    lines = [line for line in out.splitlines() if line.startswith("rank")]
    hosts = [line.split("=")[1].split()[0] for line in lines]
    assert [int(line.split()[1].split("=")[0]) for line in lines] == [*range(16)]
    mesh = json.loads(run(capsys, *words, "--format", "devicemesh")[1])
    assert [f"h{rank % 2}" for rank in mesh] == hosts
    if "as good as any found" in err:  # a planner that finds the hosts by itself
        assert mesh == [*range(16)]
    else:
        assert "x better" in err
        assert hosts == ["h0"] * 8 + ["h1"] * 8
        assert run(capsys, *words, "--format", "map-by")[1] == "--map-by ppr:8:node --rank-by slot\n"


def test_without_anything_better_the_order_stays(capsys):
    status, out, err = run(capsys, "--system", "dgx-h100", "--bytes", "0", "--format", "devicemesh")
    assert (status, out) == (0, f"{[*range(8)]}\n")
    assert "the given order is as good as any found" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--system", "dgx-h100", "--ranks", "9"), "--ranks 9: topology 'dgx-h100' has 8 endpoints; expected 1 to 8"),
        (("--system", "dgx-h100", "--ranks", "GPU0,GPU0"), "order: two ranks on one endpoint"),
        (("--system", "dgx-h100", "--format", "json"), "argument --format: invalid choice: 'json'"),
        (("--system", "nowhere"), "system 'nowhere' is not in the catalogue"),
        (
            ("--system", "dgx-h100", "--ranks", "GPU1,GPU0", "--format", "map-by"),
            "only a rankfile can, use --format rankfile",
        ),
    ],
)
def test_bad_usage_is_one_line(capsys, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
