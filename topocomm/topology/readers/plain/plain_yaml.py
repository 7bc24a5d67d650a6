"""YAML as the data that topology files need: mappings, lists and texts, read from PyYAML's events.

Scalars stay texts, as with PyYAML's BaseLoader. Anchors, aliases and tags are refused, so a short file cannot describe
a huge or a foreign object.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

MAX_DEPTH = 50
MAX_LINES = 200_000
_TAB = re.compile(r"^ *\t", re.MULTILINE)


class PlainYamlError(ValueError):
    """The text is no such YAML; `line` counts from 1."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def loads(text: str) -> Any:
    """Return the document: mappings are dicts, lists are lists, scalars are texts, and an empty value is None.

    Raises:
        PlainYamlError: The text is no YAML, or uses more of YAML than is read here.
    """
    import yaml

    if (lines := text.count("\n")) > MAX_LINES:
        raise PlainYamlError(MAX_LINES + 1, f"{lines} lines; expected {MAX_LINES} at most")
    if (odd := yaml.reader.Reader.NON_PRINTABLE.search(text)) is not None:
        raise PlainYamlError(text.count("\n", 0, odd.start()) + 1, f"the character {odd[0]!r} is not allowed in YAML")
    document, documents = None, 0
    try:
        events = yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        for event in events:
            documents += isinstance(event, yaml.DocumentStartEvent)
            if documents > 1:
                raise PlainYamlError(event.start_mark.line + 1, "a second document; expected one")
            if isinstance(event, yaml.NodeEvent):
                document = _value(events, event, 0)
    except yaml.MarkedYAMLError as error:
        advice = "; indent by blanks, not by tabs" if _TAB.search(text) else ""
        raise PlainYamlError(error.problem_mark.line + 1, f"no YAML: {error.problem}{advice}") from None
    return document


def _value(events: Iterator[Any], event: Any, depth: int, *, is_key: bool = False) -> Any:
    """Return the value that starts with an event, and take its other events."""
    import yaml

    line = event.start_mark.line + 1
    if event.anchor or getattr(event, "tag", None):
        raise PlainYamlError(line, "anchors, aliases and tags are not read here; expected plain YAML")
    is_scalar = isinstance(event, yaml.ScalarEvent)
    if not is_scalar and depth >= MAX_DEPTH:
        raise PlainYamlError(line, f"nested more than {MAX_DEPTH} deep")
    if is_key and not (is_scalar and (event.value or not event.implicit[0])):
        raise PlainYamlError(line, "a key that is no text")
    if is_scalar:
        return event.value if event.value or not event.implicit[0] else None
    items: list[Any] = []
    mapping: dict[str, Any] = {}
    is_mapping = isinstance(event, yaml.MappingStartEvent)
    while not isinstance(event := next(events), yaml.CollectionEndEvent):
        item = _value(events, event, depth + 1, is_key=is_mapping)
        if not is_mapping:
            items.append(item)
        elif item in mapping:
            raise PlainYamlError(event.start_mark.line + 1, f"the key {item[:40]!r} is there twice")
        else:
            mapping[item] = _value(events, next(events), depth + 1)
    return mapping if is_mapping else items
