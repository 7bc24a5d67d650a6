"""YAML as the data that topology files need: mappings, lists and texts, read from PyYAML's events.

Scalars stay texts, as with PyYAML's BaseLoader. Anchors, aliases and tags are refused, so a short file cannot describe
a huge or a foreign object.
"""

from __future__ import annotations

import re
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
    """Return the document: mappings are dicts, lists are lists, scalars are texts, what is empty is None.

    Raises:
        PlainYamlError: The text is no YAML, or uses more of YAML than is read here.
    """
    import yaml

    if (lines := text.count("\n")) > MAX_LINES:
        raise PlainYamlError(MAX_LINES + 1, f"{lines} lines; expected {MAX_LINES} at most")
    if (odd := yaml.reader.Reader.NON_PRINTABLE.search(text)) is not None:
        raise PlainYamlError(text.count("\n", 0, odd.start()) + 1, f"the character {odd[0]!r} is not allowed in YAML")
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            builder.add(event)
    except yaml.MarkedYAMLError as error:
        advice = "; indent by blanks, not by tabs" if _TAB.search(text) else ""
        raise PlainYamlError(error.problem_mark.line + 1, f"no YAML: {error.problem}{advice}") from None
    return builder.document


class _Builder:
    """Makes the document of parse events."""

    def __init__(self) -> None:
        self.document: Any = None
        self._documents = 0
        self._open: list[Any] = []  # the mappings and lists around the next event
        self._keys: list[str | None] = []  # of each open one, the key that waits for its value

    def add(self, event: Any) -> None:
        """Take the next event.

        Raises:
            PlainYamlError: It is no part of a plain document.
        """
        import yaml

        line = event.start_mark.line + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise PlainYamlError(line, "a second document; expected one")
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            self._keys.pop()
        elif isinstance(event, yaml.NodeEvent):
            if event.anchor or getattr(event, "tag", None):
                raise PlainYamlError(line, "anchors, aliases and tags are not read here; expected plain YAML")
            if isinstance(event, yaml.ScalarEvent):
                plain = event.implicit[0]
                self._place(event.value if event.value or not plain else None, line)
            else:
                self._enter({} if isinstance(event, yaml.MappingStartEvent) else [], line)

    def _enter(self, collection: Any, line: int) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise PlainYamlError(line, f"nested more than {MAX_DEPTH} deep")
        self._place(collection, line)
        self._open.append(collection)
        self._keys.append(None)

    def _place(self, value: Any, line: int) -> None:
        """Put a value where it belongs; in a mapping every other one is a key."""
        if not self._open:
            self.document = value
        elif isinstance(self._open[-1], list):
            self._open[-1].append(value)
        elif (key := self._keys[-1]) is not None:
            self._open[-1][key] = value
            self._keys[-1] = None
        elif not isinstance(value, str):
            raise PlainYamlError(line, "a key that is no text")
        elif value in self._open[-1]:
            raise PlainYamlError(line, f"the key {value[:40]!r} is there twice")
        else:
            self._keys[-1] = value
