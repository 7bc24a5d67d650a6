"""Every kind of link has a colour for each kind of viewer, or shares one."""

from topocomm.topology.draw.svg.colours import KIND_COLOURS, OTHER_COLOURS, kind_class, style_sheet


def test_kinds_without_a_colour_share_one():
    assert [kind_class(kind) for kind in ("nvlink", "telepathy")] == ["nvlink", "other"]


def test_light_and_dark_viewers_get_their_own():
    light, dark = style_sheet().split("@media (prefers-color-scheme:dark)")
    for kind, colours in {**KIND_COLOURS, "other": OTHER_COLOURS}.items():
        for colour, rules in zip(colours, (light, dark), strict=True):
            assert f".{kind}.wire{{stroke:{colour};" in rules
