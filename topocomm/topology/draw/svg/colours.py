"""The colours of links, devices and words in pictures, for light and dark viewers."""

from __future__ import annotations

from collections.abc import Collection

KIND_COLOURS = {
    "nvlink": ("#12965f", "#57e785"),
    "xgmi": ("#9a1038", "#f0507a"),
    "xgmi-cpu": ("#525a10", "#e2f050"),
    "pcie": ("#d07a1e", "#e09a28"),
    "smp": ("#5a1f94", "#9a5cf0"),
    "network": ("#1466d6", "#5cb4fd"),
    "shared-memory": ("#0a93c4", "#c8f4f2"),
}
"""Colours of each kind of link, on light and on dark; apart for the colour-blind too (tests/topology/draw/svg)."""
HUES = (
    ("#1769d2", "#5cb0ff"),
    ("#b04a0a", "#ff8a3d"),
    ("#0d9b76", "#2fe0a8"),
    ("#5b1048", "#d94fb0"),
    ("#9a9200", "#f2f04a"),
    ("#7420d8", "#a060ff"),
    ("#5a0a10", "#c8404a"),
    ("#2d96b5", "#c5eaef"),
)
"""Colours of rounds, trees and curves, in turn; as far apart."""
OTHER_COLOURS = ("#5b6472", "#a7b0be")
_PAPER = {
    "paper": ("#ffffff", "#14181f"),
    "panel": ("#f6f7f9", "#1c222b"),
    "group": ("#eaedf1", "#262e39"),
    "device": ("#ffffff", "#323c49"),
}
_INK = {"ink": ("#1b2330", "#e8ecf2"), "soft": ("#5b6472", "#a7b0be")}
_FONT = "font-family:system-ui,-apple-system,'Segoe UI','DejaVu Sans',Arial,sans-serif"


def kind_class(kind: str) -> str:
    """Return the class of a kind of link; kinds without a colour share `other`."""
    return kind if kind in KIND_COLOURS else "other"


def hue_class(index: int) -> str:
    """Return the class of the round, tree or curve with this number."""
    return f"hue{index % len(HUES)}"


def style_sheet(used: Collection[str] | None = None) -> str:
    """Return the rules of the classes that shapes have; of colours only those used, all where None."""
    fixed = (
        f".words{{{_FONT}}}.bold{{font-weight:600}}.wire{{fill:none}}.head{{stroke:none}}.guess{{stroke-dasharray:3 3}}"
        ".pale{opacity:.25}"
    )
    schemes = []
    for scheme in (0, 1):
        rules = [f".{name}{{fill:{both[scheme]}}}" for name, both in {**_PAPER, **_INK}.items()]
        edge = _INK["soft"][scheme]
        rules += [f".{name}{{stroke:{edge};stroke-width:1}}" for name in ("group", "device", "panel")]
        rules.append(f".result{{stroke:{_INK['ink'][scheme]};stroke-width:2.6}}")
        hues = {f"hue{index}": both for index, both in enumerate(HUES)}
        for name, both in {**KIND_COLOURS, "other": OTHER_COLOURS, **hues}.items():
            if used is not None and name not in used:
                continue
            colour = both[scheme]
            rules.append(f".{name}.wire{{stroke:{colour};fill:none}}.{name}.head,.{name}.fill{{fill:{colour}}}")
            rules.append(f".{name}.edge{{stroke:{colour};stroke-width:1.6}}")
        schemes.append("".join(rules))
    return f"{fixed}{schemes[0]}@media (prefers-color-scheme:dark){{{schemes[1]}}}"
