"""Logs that writers, launchers and copies damaged: what is certain stays, nothing else is said, and it ends soon."""

from tests.topology.readers.nccl.log.logs import COMM, by, comm, interleaved, orders, read, rings


def test_lines_cut_into_each_other():
    lines = by(0, rings(4)[0]).splitlines()
    text = by(1, COMM.format(1) + "Trees [0] 2/-1/-1->1->0 [1] 2/-1/-1->1->0")
    text += lines[0][:40] + by(2, "Ring 00 : 1 -> 2 -> 3") + by(2, "Trees [0] 3/-1/-1->2->1 [1] 3/-1")[:-1]
    text += by(3, "Ring 00 : 2 -> 3 -> 0")
    topology = read(text)
    assert topology.facts["rings"] == {"0": [0, 1, 2, 3]}
    assert topology.facts["trees"]["0"]["2"] == {"parent": 1, "children": [3]}
    assert set(topology.facts["trees"]["1"]) == {"1"}
    assert "several writers cut each other's lines" in topology.warnings[0]
    assert topology.warnings[0].startswith("job.log:3:")


def test_host_names_glued_to_other_text():
    text = by(0, COMM.format(0)) + "Epoch 1" + by(0, "Ring 00 : 3 -> 0 -> 1") + by(1, "Ring 00 : 0 -> 1 -> 2")
    text += by(1, "comm 0x5b rank 1 nRanks 4 nNodes")[:-1] + by(2, "Ring 00 : 1 -> 2 -> 3")
    topology = read(text)
    assert topology.facts["rings"] == {"0": [0, 1, 2, 3]}
    assert {d.host for d in topology.devices} == {"host0"}


def test_launchers_timestamps_colours_and_line_ends_do_not_matter():
    plain = interleaved(rings(4))
    for prefix in ("[1,0]<stdout>:", "3: ", "2026-01-01T00:00:00.1Z ", "worker-0 | ", "(Worker pid=77) ", "[rank0]: "):
        assert read("".join(f"{prefix}{line}\n" for line in plain.splitlines())).facts == read(plain).facts
    assert read(plain.replace("\n", "\r\n")).facts == read(plain).facts
    assert read(plain.replace("NCCL", "\x1b[32mNCCL\x1b[0m")).facts == read(plain).facts
    assert read(plain.replace("->", "-&gt;")).facts == read(plain).facts


def test_notes_of_ray_on_lines_that_it_left_out():
    text = by(0, f"{comm(0, 3)}\n{orders(3)} [repeated 3x across cluster]")
    assert read(text).facts["rings"] == {"0": [0, 1, 2]}
