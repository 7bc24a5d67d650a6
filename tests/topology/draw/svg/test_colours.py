"""Every kind of link has a colour for each kind of viewer, or shares one."""

from itertools import combinations
from math import dist

import pytest

from topocomm.topology.draw.svg.colours import HUES, KIND_COLOURS, OTHER_COLOURS, hue_class, kind_class, style_sheet


def test_kinds_without_a_colour_share_one():
    assert [kind_class(kind) for kind in ("nvlink", "telepathy")] == ["nvlink", "other"]


def test_light_and_dark_viewers_get_their_own():
    light, dark = style_sheet().split("@media (prefers-color-scheme:dark)")
    for kind, colours in {**KIND_COLOURS, "other": OTHER_COLOURS}.items():
        for colour, rules in zip(colours, (light, dark), strict=True):
            assert f".{kind}.wire{{stroke:{colour};" in rules


# Machado, Oliveira and Fernandes (2009), severity 1.0: linear RGB as the colour-blind see it.
SIGHT = {
    "normal": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
}
PAPER = ("#ffffff", "#14181f")


def linear(colour):
    values = [value / 255 for value in bytes.fromhex(colour[1:])]
    return [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]


def luminance(colour):
    return sum(part * value for part, value in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def lab(colour, sight):
    red, green, blue = (
        min(max(sum(part * value for part, value in zip(row, linear(colour), strict=True)), 0.0), 1.0) for row in sight
    )
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("palette", [[*KIND_COLOURS.values(), OTHER_COLOURS], HUES], ids=["kinds", "hues"])
@pytest.mark.parametrize("sight", SIGHT)
def test_colours_are_apart_for_everyone(palette, scheme, sight):
    """CIE76 distance; 2.3 is just noticeable."""
    seen = [lab(both[scheme], SIGHT[sight]) for both in palette]
    assert min(dist(one, other) for one, other in combinations(seen, 2)) > 12


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_from_the_paper(scheme):
    """WCAG 2.1, 1.4.11: graphics have a contrast of 3 at least."""
    for both in (*KIND_COLOURS.values(), OTHER_COLOURS, *HUES):
        low, high = sorted((luminance(both[scheme]), luminance(PAPER[scheme])))
        assert (high + 0.05) / (low + 0.05) >= 3


def test_a_style_sheet_has_the_rules_of_colours_used_only():
    used = style_sheet({"nvlink", "device"})
    assert ".nvlink.wire" in used and ".pcie.wire" not in used and ".hue0.wire" not in used
    assert ".hue7.wire" in style_sheet()
    assert [hue_class(index) for index in (0, 7, 8)] == ["hue0", "hue7", "hue0"]
