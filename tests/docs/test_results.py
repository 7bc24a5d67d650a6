"""Pages of figures: the index names each, and what the README shows is of pages that no later one replaces."""

import json
import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "docs/results"
LINK = re.compile(r"\]\(([\w.-]+\.md)")
REPLACED = "**Replaced since:**"


def test_the_index_names_every_page():
    assert {*LINK.findall((RESULTS / "index.md").read_text()), "index.md"} == {
        page.name for page in RESULTS.glob("*.md")
    }


def test_what_replaces_a_page_is_newer_and_named_in_its_first_lines():
    marked = [page for page in RESULTS.glob("*.md") if REPLACED in page.read_text()]
    assert len(marked) >= 8
    for page in marked:
        paragraph = page.read_text().split("\n\n")[1]
        assert paragraph.startswith(REPLACED)
        assert all(other > page.name for other in LINK.findall(paragraph)), page


def test_a_chart_is_not_of_a_page_that_a_later_one_replaces_in_its_matter():
    for panel in json.loads((RESULTS / "headline.json").read_text()):
        assert REPLACED not in (RESULTS / panel["source"]).read_text(), panel["title"]
