"""Machines of a log: several ranks that print one, ranks that disagree, GPUs without ranks."""

from tests.topology.readers.nccl.log.logs import DIRECT, MATRIX, SWITCHED, by, codes, links, read


def test_every_rank_prints_the_machine_and_one_alone_is_enough():
    one = read(by(1, SWITCHED + MATRIX))
    all_four = read("".join(by(rank, SWITCHED + MATRIX) for rank in range(4)))
    bare = read(SWITCHED + MATRIX)
    squeezed = read(by(1, SWITCHED.replace("              ", "   ")))
    assert one.devices == all_four.devices == bare.devices == squeezed.devices
    assert one.links == all_four.links == bare.links == squeezed.links
    assert all_four.warnings == ()


def test_a_matrix_without_tree_gives_pcie_links_but_no_ranks():
    topology = read(by(5, MATRIX))
    assert [(d.id, d.bus_id) for d in topology.devices if d.kind == "gpu"] == [
        ("GPU0", "0000:03:00.0"),
        ("GPU1", "0000:83:00.0"),
    ]
    assert topology.links
    assert topology.ranks == ()
    assert "rank_busid" not in topology.facts
    assert "numbered in the order printed, which may not be their ranks" in topology.warnings[0]


def test_cells_that_ranks_print_differently_are_not_used():
    topology = read(by(0, SWITCHED + MATRIX) + by(1, SWITCHED + MATRIX.replace("4/6.0/SYS", "4/6.0/PHB")))
    assert any("cells of the path matrix differ between ranks" in w for w in topology.warnings)
    assert "GPU0-GPU2" not in codes(topology)


def test_trees_of_one_machine_that_differ():
    topology = read(by(0, DIRECT) + by(1, DIRECT.replace("22.0", "44.0")))
    assert topology.warnings == ("job.log: the system trees of lines 1 and 14 differ; the first was read",)
    assert links(topology)["GPU0", "GPU2"] == ("nvlink", 22.0)
