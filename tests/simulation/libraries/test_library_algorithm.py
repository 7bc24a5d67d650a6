"""What an entry of the registry says."""

from topocomm.simulation.libraries import algorithm, names


def test_entries_have_a_summary_of_one_line_and_a_collective():
    for name in names():
        each = algorithm(name)
        assert each.name == name
        assert each.summary
        assert "\n" not in each.summary
        assert each.collectives
