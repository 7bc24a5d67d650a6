import re

from tests.topology.draw.geometry import SVG, facts, parsed, words
from tests.topology.draw.machines import linked_pair, shown
from topocomm.topology.draw.svg.machine_svg import render
from topocomm.topology.draw.svg.svg_page import Page, fitted


def test_names_are_escaped_and_warnings_below():
    root = parsed(render(linked_pair()))
    assert words(root)[0] == '<script>"x"</script> & co (by hand)'
    assert "Note: a <b>warning</b>" in words(root)
    assert any('A <b> & "c"' in text and "PCI address 0000:07:00.0" in text for text in facts(root))


def test_it_needs_nothing_else_and_runs_nothing():
    for topology in [*shown(), linked_pair()]:
        text = render(topology)
        assert not re.findall(r"<script|<image|href|url\(|@import|@font-face|\son\w+=", text)
        assert text.count("http") == 1  # the name space
        assert "prefers-color-scheme:dark" in text


def page_of(draw):
    page = Page("title", "words")
    draw(page)
    return parsed(page.render(100, 50))


def test_words_are_cut_to_their_room():
    assert fitted("switch", 10, 60) == "switch"
    assert fitted("a long name", 10, 30) == "a lo…"
    assert fitted("ab", 10, 1) == "…"
    assert len(fitted("a" * 99, 10, 60, letter=1.0)) == 6


def test_control_characters_are_marked():
    root = page_of(lambda page: page.text((1, 2), "a\x00b\x1b"))
    assert words(root) == ["a\ufffdb\ufffd"]


def test_coordinates_are_tenths_without_a_zero():
    root = page_of(lambda page: page.rect((-0.01, 1.25), (10.0, 2.04), "panel"))
    box = root.findall(f"{SVG}rect")[1]
    assert [box.get(key) for key in ("x", "y", "width", "height")] == ["0", "1.2", "10", "2"]


def test_an_arrow_has_a_head_at_its_end_or_at_both():
    for both, heads in ((False, 1), (True, 2)):
        root = page_of(lambda page, both=both: page.arrow((0, 0), (50, 9), (99, 0), "pcie", apart=5, both=both))
        tips = [shape.get("points").split()[0] for shape in root.iter(f"{SVG}polygon")]
        assert tips == ["94.1,0.9", "4.9,0.9"][:heads]


def test_a_bend_is_round_at_its_corner_and_ends_where_it_should():
    root = page_of(lambda page: page.bend([(0, 0), (0, 20), (20, 20)], "pcie"))
    assert root.find(f"{SVG}path").get("d") == "M0 0 L0 13 Q0 20 7 20 L20 20"
