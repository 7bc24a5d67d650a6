"""The HTML page as text; `test_browser` opens it."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.topology.draw.machines import linked_pair, mixed_cluster, shown
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.html_page import render

VOID = {"meta", "link", "br", "line", "rect", "circle", "path"}
FETCHING = {"src", "href", "srcset", "data", "action", "poster", "background", "xlink:href"}


class Checker(HTMLParser):
    """Checks that tags nest, and gathers ids, attributes that fetch, and text by tag."""

    def __init__(self, text):
        super().__init__()
        self.stack, self.ids, self.fetched, self.texts, self.handlers = [], [], [], {}, []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag, attrs):
        self.note(attrs)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.note(attrs)

    def note(self, attrs):
        self.ids += [value for key, value in attrs if key == "id"]
        self.fetched += [value for key, value in attrs if key in FETCHING]
        self.handlers += [key for key, _ in attrs if key.startswith("on")]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if self.stack:
            self.texts.setdefault(self.stack[-1], []).append(data)


@pytest.mark.parametrize("topology", [*shown(), linked_pair(), mixed_cluster()], ids=lambda t: t.name)
def test_it_is_whole_html_that_fetches_nothing(topology):
    text = render(topology)
    page = Checker(text)
    assert text.startswith("<!DOCTYPE html>\n")
    assert page.fetched == ["data:,"]  # the icon, so that no browser asks for one
    assert page.handlers == []
    assert len(page.ids) == len(set(page.ids))
    assert not re.findall(r"http|@import|@font-face|url\(|fetch\(|XMLHttp|import\(|eval\(", text)


def test_names_and_warnings_stay_text():
    page = Checker(render(linked_pair()))
    assert page.texts["title"][0] == '<script>"x"</script> & co'
    assert page.texts["li"] == ["a <b>warning</b>"]
    assert page.texts["summary"] == ["1 note of the reader"]
    assert len(page.texts["script"]) == 1


def test_a_name_cannot_end_the_script_or_the_format():
    text = render(replace(linked_pair(), name="{x} </script></style> {0}"))
    assert text.count("</script>") == text.count("</style>") - 1 == 1
    assert "{x} &lt;/script&gt;&lt;/style&gt; {0}" in text


def test_without_warnings_there_is_no_list():
    page = Checker(render(catalog("dgx-h100")))
    assert "notes" not in page.ids
    assert "li" not in page.texts


def test_all_warnings_are_listed():
    topology = replace(catalog("dgx-h100"), warnings=tuple(f"warning {i}" for i in range(9)))
    assert Checker(render(topology)).texts["li"] == list(topology.warnings)


def test_there_are_buttons_and_words_on_keys():
    page = Checker(render(catalog("dgx-h100")))
    assert {"in", "out", "fit", "picture", "facts", "stage"} <= set(page.ids)
    assert "with keys: arrows, + and -, 0 to fit" in " ".join(page.texts["p"]).replace("\n", " ")
