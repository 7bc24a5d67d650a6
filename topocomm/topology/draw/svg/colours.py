"""The colours of links, devices and words in pictures, for light and dark viewers."""

from __future__ import annotations

KIND_COLOURS = {
    "nvlink": ("#1f8a4c", "#4cc38a"),
    "xgmi": ("#c2374a", "#f2777f"),
    "xgmi-cpu": ("#66701c", "#bccb5c"),
    "pcie": ("#b36b00", "#f0b04d"),
    "smp": ("#7a45b5", "#b794f0"),
    "network": ("#1d5fc2", "#74a9ff"),
    "shared-memory": ("#0b7a7d", "#4dc4c7"),
}
"""Colours of each kind of link, on light and on dark."""
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


def style_sheet() -> str:
    """Return the rules of all classes that shapes have."""
    fixed = (
        f".words{{{_FONT}}}.bold{{font-weight:600}}.wire{{fill:none}}.head{{stroke:none}}.guess{{stroke-dasharray:3 3}}"
    )
    schemes = []
    for scheme in (0, 1):
        rules = [f".{name}{{fill:{both[scheme]}}}" for name, both in {**_PAPER, **_INK}.items()]
        edge = _INK["soft"][scheme]
        rules += [f".{name}{{stroke:{edge};stroke-width:1}}" for name in ("group", "device", "panel")]
        for name, both in {**KIND_COLOURS, "other": OTHER_COLOURS}.items():
            colour = both[scheme]
            rules.append(f".{name}.wire{{stroke:{colour};fill:none}}.{name}.head,.{name}.fill{{fill:{colour}}}")
            rules.append(f".{name}.edge{{stroke:{colour};stroke-width:1.6}}")
        schemes.append("".join(rules))
    return f"{fixed}{schemes[0]}@media (prefers-color-scheme:dark){{{schemes[1]}}}"
