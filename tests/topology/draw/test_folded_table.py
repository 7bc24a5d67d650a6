"""Tables that a terminal is too narrow for."""

from topocomm.topology.draw.folded_table import folded_table

ROWS = [["", "a", "bbb", "c"], ["x", "1", "2", "3"], ["yy", "4", "5", "666"]]


def test_a_table_that_fits_is_whole():
    whole = ["   a bbb c", "x  1 2   3", "yy 4 5   666"]
    assert folded_table(ROWS) == folded_table(ROWS, 12) == whole


def test_parts_repeat_the_first_cells():
    assert folded_table(ROWS, 11) == ["   a bbb", "x  1 2", "yy 4 5", "", "   c", "x  3", "yy 666"]
    assert folded_table(ROWS, 11, gap=2) == ["    a  bbb", "x   1  2", "yy  4  5", "", "    c", "x   3", "yy  666"]


def test_a_cell_wider_than_the_terminal_has_a_table_of_its_own():
    assert folded_table(ROWS, 2) == ["   a", "x  1", "yy 4", "", "   bbb", "x  2", "yy 5", "", "   c", "x  3", "yy 666"]
