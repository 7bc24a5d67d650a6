"""Pieces of HTML for notebooks: pictures whose style stays with them, tables in the page's colours."""

from base64 import b64decode
from html.parser import HTMLParser
from xml.etree import ElementTree

from topocomm import catalog
from topocomm.topology.draw.notebook import html, image, table


class Parts(HTMLParser):
    """Tags with their attributes, and text, of a piece of HTML whose tags are closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def svg_of(tag):
    kind, data = tag[1]["src"].split(",")
    assert (tag[0], kind) == ("img", "data:image/svg+xml;base64")
    return ElementTree.fromstring(b64decode(data))


def test_a_machine_is_its_picture_and_is_told_to_those_who_do_not_see_it():
    topology = catalog("dgx-a100")
    (tag,) = Parts(html(topology)).tags
    drawn = "".join(svg_of(tag).itertext())
    assert topology.name in drawn
    assert "prefers-color-scheme:dark" in drawn
    assert tag[1]["alt"].startswith("dgx-a100: 8 GPUs")


def test_the_style_of_a_picture_does_not_reach_the_page():
    (tag,) = Parts(image('<svg xmlns="http://www.w3.org/2000/svg"><style>.a{}</style></svg>', 'a "word" & <b>')).tags
    assert tag[1]["alt"] == 'a "word" & <b>'
    assert [part.tag.split("}")[1] for part in svg_of(tag)] == ["style"]


def test_tables_have_no_colours_and_numbers_stand_to_the_right():
    parts = Parts(table(("name", "us"), [("<ring>", "1,234.50"), ("a.b", "none")]))
    assert parts.texts == ["name", "us", "<ring>", "1,234.50", "a.b", "none"]
    sides = [attrs["style"] for tag, attrs in parts.tags if tag == "td"]
    assert sides == [f"text-align:{side}" for side in ("left", "right", "left", "left")]
    assert not any("color" in str(attrs) for _, attrs in parts.tags)
