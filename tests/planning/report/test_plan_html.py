"""A plan as a page: the picture, and a panel for each round."""

import re

from tests.topology.draw.test_html_page import Checker
from topocomm import catalog, plan
from topocomm.planning.report.plan_html import dumps


def test_it_is_one_page_with_a_panel_for_each_round_that_fetches_nothing():
    topology = catalog("dgx-h100", hosts=2)
    made = plan(topology, "allreduce", payload_bytes=16384)
    text = dumps(made, topology)
    page = Checker(text)
    assert page.fetched == ["data:,"]
    assert {"picture", "facts", "fit"} <= set(page.ids)
    panels = [word for word in page.texts["text"] if re.fullmatch(r"round \d", word)]
    assert panels == [f"round {i + 1}" for i in range(made.figures.rounds)] * 2  # on the timeline, and as titles
    assert not re.findall(r"http|@import|@font-face|url\(|fetch\(|XMLHttp|import\(|eval\(", text)
