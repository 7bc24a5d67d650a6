"""XML as a tree of elements with their lines; without entities, which can expand a text or read files.

A DOCTYPE is passed over, because nvidia-smi and hwloc write one; its declarations are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from topocomm.errors import TopologyError

MAX_DEPTH = 100
"""Elements within elements; hwloc's deepest machine has some 20."""


@dataclass(slots=True)
class Element:
    """One element: its tag, attributes, children in order, and the line it begins on, counted from 1."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """Return the children with this tag."""
        return [child for child in self.children if child.tag == tag]


def parse(text: str, name: str) -> Element:
    """Return the root element of a document.

    Comments, processing instructions and text between elements are passed over. Messages call the document `name`.

    Raises:
        TopologyError: It is no XML (line and column are named), declares entities, or is nested too deep.
    """
    parser = expat.ParserCreate()
    root: list[Element] = []
    open_elements: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        line = parser.CurrentLineNumber
        if len(open_elements) == MAX_DEPTH:
            raise TopologyError(f"{name}:{line}: elements are nested deeper than {MAX_DEPTH}; this is no machine")
        element = Element(tag, attributes, line)
        (open_elements[-1].children if open_elements else root).append(element)
        open_elements.append(element)

    def refuse(entity: str, *_rest: object) -> None:
        line = parser.CurrentLineNumber
        raise TopologyError(f"{name}:{line}: declares the entity {entity!r}; entities are refused, write the text out")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda _tag: open_elements.pop()
    parser.EntityDeclHandler = refuse
    parser.SetParamEntityParsing(expat.XML_PARAM_ENTITY_PARSING_NEVER)
    try:
        parser.Parse(_without_encoding(text).encode("utf-8", "surrogatepass"), True)
    except expat.ExpatError as error:
        what = expat.ErrorString(error.code)
        hint = "; it ends too early" if error.code in _CUT_SHORT else ""
        raise TopologyError(f"{name}:{error.lineno}: not XML: {what} at column {error.offset + 1}{hint}") from None
    return root[0]


_CUT_SHORT = (
    expat.errors.codes[expat.errors.XML_ERROR_NO_ELEMENTS],
    expat.errors.codes[expat.errors.XML_ERROR_UNCLOSED_TOKEN],
    expat.errors.codes[expat.errors.XML_ERROR_PARTIAL_CHAR],
    expat.errors.codes[expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION],
)


def _without_encoding(text: str) -> str:
    """Return the text without its declaration, which may name any encoding. Lines keep their numbers."""
    bare = text.lstrip("\ufeff \t\r\n")
    if bare.startswith("<?xml") and (close := bare.find("?>")) >= 0:
        bare = bare[close + 2 :]
    return "\n" * text[: len(text) - len(bare)].count("\n") + bare
