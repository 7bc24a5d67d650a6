"""tools/headline.py: the README's chart is of numbers that stand in the pages it names."""

import json
import re
from xml.etree import ElementTree

import pytest

from tools import headline

PANELS = json.loads(headline.FIGURES.read_text())


def test_the_committed_picture_is_what_the_command_draws():
    assert headline.PICTURE.read_text() == headline.draw(PANELS), "run python -m tools.headline"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_each_number_stands_in_the_page_of_its_panel(panel):
    page = (headline.FIGURES.parent / panel["source"]).read_text().replace(",", "")
    written = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", page)}
    missing = [bar for group in panel["groups"] for bar in group["bars"] if bar[1] not in written]
    assert not missing


def test_bars_are_as_long_as_their_times_say():
    group = {"name": "2 ranks", "unit": "us", "bars": [["topocomm", 10.0], ["a < b", 40.0]]}
    root = ElementTree.fromstring(headline.draw([{"title": "t", "below": "b", "source": "-", "groups": [group]}]))
    lengths = {bar.get("class"): int(bar.get("width")) for bar in root.iter() if bar.tag.endswith("rect")}
    assert lengths == {"ours": round(headline.LONGEST / 4), "other": headline.LONGEST}
    assert any(text.text == "a < b" for text in root.iter())
