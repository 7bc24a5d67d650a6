"""What a browser makes of the page: nothing overlaps, letters are large enough, moving and zooming work, no errors."""

from pathlib import Path

import pytest

from tests.thinning import thinned
from tests.topology.draw.browser import measured
from tests.topology.draw.machines import linked_pair, mixed_cluster, shown
from topocomm.topology.catalog.systems import catalog
from topocomm.topology.draw.html_page import render
from topocomm.topology.recognise import load

TEXTS = """
  const stage = document.getElementById("stage").getBoundingClientRect();
  return { stage: [stage.left, stage.top, stage.right, stage.bottom],
           texts: [...document.querySelectorAll("#picture text")].map((e) => {
             const r = e.getBoundingClientRect();
             const box = e.closest(".hot")?.querySelector("rect.device");
             const b = box ? box.getBoundingClientRect() : null;
             return { words: e.textContent, box: [r.left, r.top, r.right, r.bottom],
                      room: b ? [b.left, b.top, b.right, b.bottom] : null };
           }) };
"""


def overlap(a, b):
    return min(a[2], b[2]) - max(a[0], b[0]) > 1 and min(a[3], b[3]) - max(a[1], b[1]) > 1


SHOWN = {topology.name for topology in shown()}


CAPTURED = sorted((Path(__file__).parents[2] / "data/topologies").glob("*.txt"))
LARGE = [("dgx-h100", 1), ("dgx-h100", 4), ("dgx-h100", 32), ("gb200-nvl72", 1), ("mi250x", 1)]
OTHERS = [
    *(catalog(name, hosts=hosts) for name, hosts in LARGE),
    mixed_cluster(),
    *(load(file) for file in CAPTURED),
    linked_pair(),
]


@pytest.mark.parametrize("topology", [*shown(), *thinned(OTHERS, 3)], ids=lambda t: t.name[:20])
def test_labels_are_apart_in_their_boxes_and_what_people_are_shown_is_in_view(topology, tmp_path):
    """In a window of 1280 by 800 pixels, in letters of 11."""
    result = measured(render(topology), TEXTS, tmp_path)
    assert result["errors"] == []
    texts = result["found"]["texts"]
    assert len(texts) > 8
    for index, one in enumerate(texts):
        for other in texts[index + 1 :]:
            assert not overlap(one["box"], other["box"]), (one, other)
        if one["room"]:
            left, top, right, bottom = one["room"]
            assert left - 0.5 <= one["box"][0] and one["box"][2] <= right + 0.5, one
            assert top <= one["box"][1] and one["box"][3] <= bottom, one
    if topology.name in SHOWN:
        left, top, right, bottom = result["found"]["stage"]
        for text in texts:
            assert left <= text["box"][0] and text["box"][2] <= right, text
            assert top <= text["box"][1] and text["box"][3] <= bottom, text
            height = min(text["box"][3] - text["box"][1], text["box"][2] - text["box"][0])
            assert height >= 11, text  # of upright words the width


ACTS = """
  const picture = document.getElementById("picture");
  const view = document.getElementById("view");
  const facts = document.getElementById("facts");
  const states = {};
  const note = (name) => { states[name] = view.getAttribute("transform"); };
  const fire = (target, kind, type, more) => target.dispatchEvent(
    new kind(type, { bubbles: true, cancelable: true, ...more }));
  note("start");
  fire(picture, WheelEvent, "wheel", { deltaY: -200, clientX: 300, clientY: 300 });
  note("wheel");
  fire(picture, MouseEvent, "dblclick", {});
  note("fit");
  document.getElementById("in").click();
  note("in");
  document.getElementById("out").click();
  note("out");
  document.getElementById("fit").click();
  picture.setPointerCapture = () => {};
  fire(picture, PointerEvent, "pointerdown", { button: 0, buttons: 1, clientX: 100, clientY: 100, pointerId: 1 });
  fire(picture, PointerEvent, "pointermove", { buttons: 1, clientX: 150, clientY: 130, pointerId: 1 });
  note("dragged");
  fire(picture, PointerEvent, "pointerup", { pointerId: 1 });
  fire(picture, PointerEvent, "pointermove", { buttons: 0, clientX: 250, clientY: 230, pointerId: 1 });
  note("let go");
  fire(picture, KeyboardEvent, "keydown", { key: "ArrowLeft" });
  note("arrow");
  fire(picture, KeyboardEvent, "keydown", { key: "+" });
  note("plus");
  fire(picture, KeyboardEvent, "keydown", { key: "0" });
  note("zero");
  const parts = [...document.querySelectorAll(".hot")];
  const wire = parts.find((part) => part.getAttribute("aria-label").startsWith("GPU0 to and from GPU3"));
  fire(wire.querySelector(".wire"), PointerEvent, "pointermove", { buttons: 0, clientX: 400, clientY: 300 });
  states.hover = facts.hidden ? "" : facts.textContent;
  fire(picture, KeyboardEvent, "keydown", { key: "Escape" });
  states.hidden = facts.hidden;
  states.parts = parts.length;
  states.reachable = parts.filter((part) => part.tabIndex === 0 && part.getAttribute("aria-label")).length;
  states.titles = document.querySelectorAll("#view title").length;
  const room = wire.getBoundingClientRect();
  states.wide = room.width > 0;
  return states;
"""


def test_moving_zooming_and_pointing(tmp_path):
    result = measured(render(catalog("dgx-1-v100")), ACTS, tmp_path)
    assert result["errors"] == []
    states = result["found"]
    assert states["wheel"] != states["start"]
    assert states["fit"] == states["start"] == states["zero"]
    assert states["in"] != states["fit"]
    assert numbers(states["out"]) == pytest.approx(numbers(states["fit"]), abs=1e-6)
    before, after = numbers(states["fit"]), numbers(states["dragged"])
    assert [after[0] - before[0], after[1] - before[1], after[2]] == pytest.approx([50, 30, before[2]])
    assert states["let go"] == states["dragged"]
    assert numbers(states["arrow"])[0] == pytest.approx(after[0] + 60)
    assert numbers(states["plus"])[2] == pytest.approx(after[2] * 1.25)
    assert states["hover"].startswith("GPU0 to and from GPU3: NVLink\n2 links, 50 GB/s each way (nominal: NVIDIA")
    assert states["hidden"] is True
    assert states["reachable"] == states["parts"] > 40
    assert states["titles"] == 0


def numbers(transform):
    """x, y and scale of `translate(x y) scale(s)`."""
    return [float(part) for part in transform.replace("translate(", "").replace(") scale(", " ").rstrip(")").split()]


def test_warnings_stand_below_the_picture(tmp_path):
    script = """
      const notes = document.getElementById("notes").getBoundingClientRect();
      const stage = document.getElementById("stage").getBoundingClientRect();
      return { below: notes.top >= stage.bottom, words: document.querySelector("#notes li").textContent,
               scrolls: document.documentElement.scrollHeight > window.innerHeight };
    """
    found = measured(render(linked_pair()), script, tmp_path)["found"]
    assert found == {"below": True, "words": "a <b>warning</b>", "scrolls": False}


LIT = """
  const picture = document.getElementById("picture");
  const parts = [...document.querySelectorAll(".hot")];
  const point = (part) => part.firstElementChild.dispatchEvent(
    new PointerEvent("pointermove", { bubbles: true, cancelable: true, buttons: 0, clientX: 400, clientY: 300 }));
  const names = () => parts.filter((part) => part.classList.contains("lit"))
    .map((part) => part.getAttribute("aria-label").split("\\n")[0]);
  const found = { before: names() };
  point(parts.find((part) => part.getAttribute("aria-label").startsWith("GPU/0: ")));
  found.device = names();
  found.dim = picture.classList.contains("dim");
  found.told = document.getElementById("facts").textContent;
  point(parts.find((part) => part.getAttribute("aria-label").startsWith("GPU0 to and from pcie0")));
  found.link = names();
  picture.dispatchEvent(new PointerEvent("pointerleave", { bubbles: true }));
  found.after = names();
  found.bright = !picture.classList.contains("dim");
  return found;
"""


def test_pointing_at_a_device_lights_its_links_and_what_they_lead_to(tmp_path):
    result = measured(render(linked_pair()), LIT, tmp_path)
    assert result["errors"] == []
    found = result["found"]
    assert found["before"] == found["after"] == []
    assert sorted(found["device"]) == [
        "GPU/0: GPU GPU0",
        "GPU/1: GPU GPU1",
        "GPU0 to and from GPU1: NVLink",
        "GPU0 to and from pcie0: PCIe",
        "PCI/0: switch pcie0",
    ]
    assert found["dim"] and found["bright"]
    assert found["told"] == 'GPU/0: GPU GPU0\nA <b> & "c"\nhost host0\nPCI address 0000:07:00.0'
    assert sorted(found["link"]) == ["GPU/0: GPU GPU0", "GPU0 to and from pcie0: PCIe", "PCI/0: switch pcie0"]
