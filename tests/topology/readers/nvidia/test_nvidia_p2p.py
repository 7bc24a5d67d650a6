"""`nvidia-smi topo -p2p`: states of all pairs, copies, damage."""

from itertools import combinations

import pytest

from tests.topology import damage
from tests.topology.dumps import assert_said, each_of, expected
from tests.topology.matrices import facts_of, render_tabs
from topocomm.errors import TopologyError
from topocomm.topology.readers.nvidia import nvidia_nvlink_remote, nvidia_nvlink_status, nvidia_p2p

LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  U    = Unknown\n"


def matrix(gpus, state=lambda a, b: "OK", *, legend=LEGEND, tabs=False):
    """As the tool prints it: a blank before every row, cells of eight columns."""
    names = [f"GPU{i}" for i in range(gpus)]
    rows = [["", *names]]
    rows += [[f" {a}", *("X" if a == b else state(i, j) for j, b in enumerate(names))] for i, a in enumerate(names)]
    cell = (lambda text: text + "\t") if tabs else (lambda text: text.ljust(8))
    return "".join("".join(map(cell, row)).rstrip(" ") + "\n" for row in rows) + legend


def near(a, b):
    return "OK" if a // 2 == b // 2 else "CNS"


def read(text):
    assert nvidia_p2p.matches(text)
    assert not any(reader.matches(text) for reader in (nvidia_nvlink_remote, nvidia_nvlink_status))
    return nvidia_p2p.read(text, "box/dump.txt")


@pytest.mark.parametrize("tabs", [False, True])
@pytest.mark.parametrize("gpus", [2, 4, 8, 16])
def test_every_fact(gpus, tabs):
    topology = read(matrix(gpus, near, tabs=tabs))
    assert topology.name == "dump" and topology.source == "nvidia-smi topo -p2p"
    assert [(d.id, d.kind) for d in topology.devices] == [(f"GPU{i}", "gpu") for i in range(gpus)]
    assert topology.facts == {
        "p2p": {f"GPU{a}-GPU{b}": near(a, b) for a, b in combinations(range(gpus), 2)},
        "legend": True,
    }
    assert topology.links == topology.pairs == topology.warnings == ()


@pytest.mark.parametrize("state", nvidia_p2p.STATES)
def test_every_state(state):
    facts = read(matrix(2, lambda a, b: state, legend="")).facts
    assert facts == {"p2p": {"GPU0-GPU1": state}, "legend": False}


@pytest.mark.parametrize("letter", "rwnap")
@pytest.mark.parametrize(
    "prompt", ["root@node0:~# nvidia-smi topo -p2p {}\n", "nvidia-smi topo -p2p {} (P2P)\n====\n\n"]
)
def test_the_command_above_names_the_capability(letter, prompt):
    topology = read(prompt.format(letter) + matrix(2))
    assert topology.facts["capability"] == letter
    assert topology.source == f"nvidia-smi topo -p2p {letter}"


def test_the_last_command_above_counts():
    text = "$ nvidia-smi topo -p2p r\nnothing\n$ nvidia-smi topo -p2p w\n" + matrix(2)
    assert read(text + "$ nvidia-smi topo -p2p a\n").facts["capability"] == "w"


@pytest.mark.parametrize(
    "paste",
    [
        lambda text: "\n".join("      " + line for line in text.splitlines()),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\x1b[4m" + text.replace("\n", "\x1b[0m\n", 1),
        lambda text: "[4m" + text.replace("\n", "[0m\n", 1),
        lambda text: "> " + text.replace("\n", "\n> "),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: "P2P Connectivity Matrix\n" + text,
    ],
)
def test_copies(paste):
    text = matrix(4, near)
    assert read(paste(text)).facts == read(text).facts


def test_directions_that_differ():
    topology = read(matrix(3, lambda a, b: "NS" if (a, b) == (2, 0) else "OK"))
    assert topology.facts["p2p"] == {"GPU0-GPU1": "OK", "GPU0-GPU2": "OK", "GPU2-GPU0": "NS", "GPU1-GPU2": "OK"}
    assert topology.warnings == ("dump.txt:1: the two directions of a pair differ: GPU0-GPU2 is OK, GPU2-GPU0 NS",)


def test_cells_that_ran_together():
    topology = read(matrix(4, near).replace("CNS     CNS", "CNSCNS", 1))
    assert topology.facts["p2p"] == read(matrix(4, near)).facts["p2p"]
    assert topology.warnings == ("dump.txt:2: cells run together: 'CNSCNS' is read as CNS CNS",)


def test_a_lost_cell_is_read_from_its_mirror():
    topology = read(matrix(4, near).replace("OK      CNS     CNS", "OK      CNS", 1))
    assert topology.facts["p2p"] == read(matrix(4, near)).facts["p2p"]
    assert topology.warnings[0].startswith("dump.txt:2: row GPU0 has 3 of 4 cells")


def test_a_cell_lost_left_of_the_diagonal_does_not_shift_the_row():
    text = matrix(4, lambda a, b: nvidia_p2p.STATES[a + b])
    topology = read(text.replace("GPU1   CNS     X", "GPU1   X", 1).replace("GPU2   GNS     ", "GPU2           ", 1))
    assert topology.facts["p2p"] == read(text).facts["p2p"]
    assert [warning.split(";")[0] for warning in topology.warnings] == [
        "dump.txt:3: row GPU1 has 3 of 4 cells",
        "dump.txt:4: row GPU2 has 3 of 4 cells",
    ]


def test_a_second_matrix_is_said():
    topology = read(matrix(2) + "$ nvidia-smi topo -p2p w\n" + matrix(2, lambda a, b: "NS", legend=""))
    assert topology.facts["p2p"] == {"GPU0-GPU1": "OK"}
    topology = read(matrix(2, legend="") + matrix(2, lambda a, b: "NS", legend=""))
    assert topology.facts["p2p"] == {"GPU0-GPU1": "OK"}
    assert topology.warnings == ("dump.txt:4: a second matrix starts here; only the first was read",)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda t: t[: t.rindex(" GPU3")], "dump.txt:4: no row for GPU3, which the header on line 1 names"),
        (lambda t: t[: t.rindex(" GPU3") + 8], "dump.txt:5: the text ends inside row GPU3 (0 of 4 cells)"),
        (lambda t: t[: t.rindex(" GPU3") + 10], "dump.txt:5: the text ends inside row GPU3 ('CN')"),
        (lambda t: t.replace("OK", "0K", 1), "dump.txt:2: row GPU0, column GPU1: unknown state '0K'; known are X OK"),
        (lambda t: t.replace("CNS", "PIX", 1), "dump.txt:2: row GPU0, column GPU2: 'PIX' is a code of"),
        (lambda t: t.replace("CNS", "...", 1), "dump.txt:2: cells were left out ('...')"),
        (lambda t: t.replace("\n GPU2 ", "\n ...\n GPU2 "), "dump.txt:4: rows were left out ('...')"),
        (lambda t: t.replace("\n GPU1", "\n GPU0"), "dump.txt:3: row GPU0 is there twice, first on line 2"),
        (lambda t: t.replace("\n GPU1", "\n GPU9"), "dump.txt:3: row GPU9 has no column in the header of line 1"),
        (lambda t: t.replace("OK      X", "OK      OK", 1), "dump.txt:3: row GPU1 has 'OK' in its own column"),
        (lambda t: t.replace("\n GPU1", " OK\n GPU1"), "dump.txt:2: row GPU0 has 5 cells, the header (line 1) 4"),
        (lambda t: "", "dump.txt:1: no header row of GPU names"),
    ],
)
def test_damage(damage, says):
    with pytest.raises(TopologyError) as error:
        nvidia_p2p.read(damage(matrix(4, near)), "dump.txt")
    assert says in str(error.value)


def test_a_state_that_both_rows_lost():
    text = "        GPU0    GPU1\n GPU0   X\n GPU1           X\n\n"
    with pytest.raises(TopologyError, match=r"dump.txt:1: no header row"):
        nvidia_p2p.read(text, "dump.txt")
    text = matrix(3).replace("X       OK      OK", "X       OK", 1).replace("OK      OK      X", "OK      X", 1)
    with pytest.raises(TopologyError, match=r"dump.txt:4: the state of GPU0-GPU\d is lost in both rows"):
        nvidia_p2p.read(text, "dump.txt")


def test_too_many_gpus():
    names = " ".join(f"GPU{i}" for i in range(2000))
    with pytest.raises(TopologyError, match="2000 GPUs; a host has at most 1024"):
        nvidia_p2p.read(f"{names}\nGPU0 X OK\n", "dump.txt")


def test_the_matrix_of_paths_is_another():
    facts = facts_of(4, lambda a, b: "PIX")
    assert not nvidia_p2p.matches(render_tabs(facts))
    assert not nvidia_p2p.matches(render_tabs(facts) + matrix(4))
    assert not nvidia_p2p.matches("GPU0 and GPU1 are OK\nGPU0 OK\n")


@pytest.mark.soak
@pytest.mark.parametrize(
    "text",
    [
        matrix(400),
        "GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7\n" * 25_000,
        "GPU0 GPU1\nGPU0 X " + "OK" * 500_000,
        "GPU0 " * 200_000 + "\nGPU0 X OK\n",
        "GPU0 GPU1\n" + "GPU0 X OK\nGPU1 OK X\n" * 50_000,
    ],
)
def test_a_megabyte_is_read(text):
    damage.attempt(nvidia_p2p, text)


@each_of("nvidia-smi-topo-p2p")
def test_facts(path):
    wanted = expected(path)
    topology = nvidia_p2p.read(path.read_bytes().decode(), str(path))
    facts = {**topology.facts, "gpus": len(topology.devices), "malformed": bool(topology.warnings)}
    assert facts.get("capability") in (None, wanted["capability"])  # the matrix itself does not say it
    assert_said(facts, wanted, but={"capability"})


@pytest.mark.parametrize("prefix", ["2025-03-04 10:11:12 INFO ", "3: ", "[1,0]<stdout>:", "# ", "    7\t"])
def test_prefix_on_every_line(prefix):
    text = "".join(prefix + line for line in matrix(4, near).splitlines(True))
    assert nvidia_p2p.matches(text)
    topology = nvidia_p2p.read(text, "p2p.txt")
    assert topology.facts == nvidia_p2p.read(matrix(4, near), "p2p.txt").facts
    assert topology.warnings == ()


def test_several_capabilities_in_one_text():
    """The first is read; that there are others is said, also below a legend."""
    text = f"$ nvidia-smi topo -p2p r\n{matrix(2)}$ nvidia-smi topo -p2p w\n{matrix(2, lambda a, b: 'NS')}"
    topology = nvidia_p2p.read(text, "p2p.txt")
    assert topology.facts == {"capability": "r", "p2p": {"GPU0-GPU1": "OK"}, "legend": True}
    line = text.splitlines().index("$ nvidia-smi topo -p2p w") + 2
    assert topology.warnings == (f"p2p.txt:{line}: a second matrix starts here; only the first was read",)
