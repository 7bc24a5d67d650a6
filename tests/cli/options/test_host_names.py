"""`--hosts FILE`: names of hosts for rankfiles."""

import json

import pytest

from tests.cli.test_order_command import CLUSTER, run
from topocomm.cli.main import main
from topocomm.cli.options.host_names import count_or_file, read_host_names


def test_a_number_is_a_count_and_all_else_a_file():
    assert (count_or_file("4"), count_or_file("-1"), count_or_file("hosts4")) == (4, -1, "hosts4")


def test_names_as_in_a_hostfile(tmp_path):
    file = tmp_path / "hosts"
    file.write_text("# two\nleft slots=8\n\nright.example max-slots=4  # second\n10.0.0.7\n")
    assert read_host_names(str(file)) == ["left", "right.example", "10.0.0.7"]


def names_file(tmp_path, text):
    file = tmp_path / "hosts.txt"
    file.write_text(text)
    return str(file)


def test_hosts_get_their_names_from_a_file(capsys, tmp_path):
    file = names_file(tmp_path, "# the cluster\nleft.example slots=8\n\nright  # second\n")
    status, out, _ = run(capsys, "--system", "dgx-h100", "--hosts", file, "--bytes", "64KiB")
    assert status == 0
    ranks = [line.split("=")[1] for line in out.splitlines() if line.startswith("rank")]
    assert ranks == ["left.example"] * 8 + ["right"] * 8
    assert "--hosts FILE" not in out
    assert "--hosts FILE" in run(capsys, "--system", "dgx-h100", "--hosts", "2", "--bytes", "64KiB")[1]


def test_hosts_of_captures_are_named_in_their_order(capsys, tmp_path):
    capture = tmp_path / "topo.json"
    capture.write_text(json.dumps({"schema": "topocomm.topology/1", "name": "a", "source": "a", **PAIR}))
    file = names_file(tmp_path, "node7\n")
    status, out, _ = run(capsys, "--input", str(capture), "--hosts", file, "--bytes", "0")
    assert (status, [line for line in out.splitlines() if "rank" in line][-1]) == (0, "rank 1=node7")


PAIR = {
    "devices": [{"id": f"GPU{i}", "kind": "gpu", "host": "host0"} for i in range(2)],
    "links": [
        {"src": f"GPU{i}", "dst": f"GPU{1 - i}", "kind": "nvlink", "gb_per_s": 50.0, "latency_us": 1.0}
        for i in range(2)
    ],
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "hosts.txt: no host name; expected one a line"),
        ("# none\n\n", "hosts.txt: no host name; expected one a line"),
        ("a\nb\na\n", "hosts.txt:3: host 'a' again, as in line 1; expected each host once"),
        ("a b\n", "hosts.txt:1: expected one host name, got 'a b'"),
        ("a\nslot\n", "hosts.txt:2: expected one host name, got 'slot'"),
        ("3a.example\n", "hosts.txt:1: expected one host name, got '3a.example'"),
        ("a\n", "hosts.txt: 1 host names; topology 'dgx-h100 x 2' has 2 hosts (h0, h1), expected a name for each"),
    ],
)
def test_a_file_of_names_that_does_not_fit(capsys, tmp_path, text, said):
    capture = tmp_path / "pair.json"
    main(["inspect", *CLUSTER, "--format", "json", "--output", str(capture)])
    words = ("--input", str(capture), "--hosts", names_file(tmp_path, text), "--bytes", "0")
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_where_names_do_not_go(capsys, tmp_path):
    file = names_file(tmp_path, "a\nb\n")
    status, _, err = run(capsys, "--system", "dgx-h100", "--hosts", file, "--format", "map-by")
    assert (status, f"--hosts {file} goes with --format rankfile only: map-by names no hosts" in err) == (2, True)
    status, _, err = run(capsys, "--system", "gb200-nvl72", "--hosts", file)
    assert (status, "2 host names; a system gb200-nvl72 has 18, expected so many" in err) == (2, True)
    status, _, err = run(capsys, "--system", "dgx-h100", "--hosts", str(tmp_path / "nowhere"))
    assert (status, "nowhere" in err) == (2, True)
