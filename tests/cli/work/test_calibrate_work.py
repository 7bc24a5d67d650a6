"""`topocomm calibrate` on small logs."""

import json
from pathlib import Path

import pytest

from tests.calibration.tables import made_models
from topocomm.cli.main import main

HEAD = """\
NCCL version 2.8.4+cuda11.0
# Collective test starting: all_reduce_perf
# Using devices
"""
COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw  #wrong\n"


@pytest.fixture
def logs(tmp_path):
    """Logs of nccl-tests of 1, 2 and 4 hosts with 4 V100 each."""
    paths = []
    for model in made_models(hosts=(1, 2, 4)):
        lines = [HEAD]
        lines += [
            f"#  Rank {rank:2} Group  0 Pid 1 on  node{rank // 4} device {rank % 4} [0000:1{rank % 4}:00] Tesla V100\n"
            for rank in range(model.table.ranks)
        ]
        lines.append(COLUMNS)
        for size, time_us in model.table.rows:
            bus = size / time_us / 1e3
            lines.append(f"{size:12} {size // 4:12} float sum -1 {time_us:9.3f} {bus:9.6f} {bus:9.6f} N/A\n")
        lines.append("# Avg bus bandwidth    : 1\n")
        path = tmp_path / f"v100-{model.table.hosts}.log"
        path.write_text("".join(lines))
        paths.append(str(path))
    return paths


def test_report_and_topology(logs, tmp_path, capsys):
    out = tmp_path / "measured.json"
    assert main(["calibrate", "--input", *logs, "--system", "v100-4", "--output", str(out)]) == 0
    text = capsys.readouterr().out
    assert "14 of 39 rows fitted" in text
    assert "allreduce nccl device" in text
    assert "nccl.start_us.LL" in text
    assert "LL128 is not in use" in text
    assert main(["plan", "--input", str(out), "--bytes", "64KiB", "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["ranks"]) == 16
    assert plan["predicted_us"] > 0


def test_json(logs, capsys):
    assert main(["calibrate", "--input", *logs, "--system", "v100-4", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "topocomm.calibration/1"
    assert document["rows"] == len(document["predictions"]) == 39
    assert document["figures"]["nccl.start_us.LL"] == pytest.approx(9.0, rel=0.15)
    assert document["has_ll128"] is False
    assert sum(each["fitted"] for each in document["predictions"]) == document["rows_fitted"] == 14


def test_all_rows(logs, capsys):
    assert main(["calibrate", "--input", *logs, "--system", "v100-4", "--all-rows"]) == 0
    assert "39 of 39 rows fitted; relative errors of all rows, which were fitted" in capsys.readouterr().out


def test_logs_that_do_not_say_their_ranks(tmp_path, capsys):
    """OSU's: as many ranks as the machine has endpoints, or as --hosts and --ranks say."""
    rows = [(4**power, 4.0 + 4**power / 2500) for power in range(1, 12)]
    head = "# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n"
    path = tmp_path / "osu.txt"
    path.write_text(head + "".join(f"{size} {time_us:.2f}\n" for size, time_us in rows))
    words = ["calibrate", "--input", str(path), "--system", "v100-4", "--format", "json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["has_ll128"] is None
    assert all(name.startswith("mpi.") for name in document["figures"])
    assert main([*words, "--hosts", "4"]) == 0
    more = json.loads(capsys.readouterr().out)["figures"]
    assert "mpi.network_us" in more
    assert "mpi.network_us" not in document["figures"]
    assert main([*words, "--hosts", "2", "--ranks", "7"]) == 2
    assert "7 ranks on 2 hosts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--system", "rtx3090-pair"], "v100-1.log: 4 ranks on 1 hosts; topology 'rtx3090-pair' has host0: 2"),
    ],
)
def test_machines_that_do_not_fit(logs, words, message, capsys):
    assert main(["calibrate", "--input", logs[0], *words]) == 2
    assert message in capsys.readouterr().err


def test_a_log_cut_off_ends_with_status_2_and_its_line(logs, tmp_path, capsys):
    cut = tmp_path / "cut.log"
    text = Path(logs[0]).read_text()
    cut.write_text(text[: text.rindex("float")])
    assert main(["calibrate", "--input", str(cut), "--system", "v100-4"]) == 2
    assert "cut.log: line 21: a row of 2 of 9 columns: the log is cut off" in capsys.readouterr().err


def test_a_calibrated_topology_is_not_calibrated_again(logs, tmp_path, capsys):
    out = tmp_path / "measured.json"
    assert main(["calibrate", "--input", *logs, "--system", "v100-4", "--output", str(out)]) == 0
    capsys.readouterr()
    assert main(["calibrate", "--input", *logs, "--topology", str(out)]) == 2
    assert "calibrated already; give the topology with nominal figures" in capsys.readouterr().err
