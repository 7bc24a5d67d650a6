"""XML without what makes it dangerous, and with the lines that messages name."""

import pytest

from topocomm.errors import TopologyError
from topocomm.topology.readers.plain.safe_xml import MAX_DEPTH, parse


def test_tree_with_lines():
    root = parse('<?xml version="1.0" encoding="latin-1"?>\n<a x="1">\n <b/>text\n <!-- c --><c y="2"/><b/>\n</a>', "f")
    assert (root.tag, root.attributes, root.line) == ("a", {"x": "1"}, 2)
    assert [(child.tag, child.line) for child in root.children] == [("b", 3), ("c", 4), ("b", 4)]
    assert [child.line for child in root.all("b")] == [3, 4]


def test_a_doctype_is_legal():
    assert parse('<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology/>', "f").tag == "topology"
    assert parse("<!DOCTYPE a [<!ELEMENT a ANY>]><a/>", "f").tag == "a"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("\n\n<a>\n<b></a>", r"f:4: not XML: mismatched tag at column 6"),
        ("<a>\n<b></a>", r"f:2: not XML: mismatched tag at column 6"),
        ("<a>\n<b>", r"f:2: not XML: .* at column 4; it ends too early"),
        ("", r"f:1: not XML: no element found at column 1; it ends too early"),
        ("<a/><b/>", r"f:1: not XML: junk after document element"),
        ("<a x='1' x='2'/>", r"f:1: not XML: duplicate attribute"),
        ("<a>&unknown;</a>", r"f:1: not XML: undefined entity"),
        ('<!DOCTYPE a [\n<!ENTITY l "ha"><!ENTITY m "&l;&l;">]><a>&m;</a>', r"f:2: declares the entity 'l'"),
        ('<!DOCTYPE a [<!ENTITY f SYSTEM "file:///etc/passwd">]><a>&f;</a>', r"f:1: declares the entity 'f'"),
        ('<!DOCTYPE a [<!ENTITY % p SYSTEM "http://x/y"> %p;]><a/>', r"f:1: declares the entity 'p'"),
        ("<a>" * (MAX_DEPTH + 1), r"f:1: elements are nested deeper than 100"),
        ("<a>\x01</a>", r"f:1: not XML"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, part):
    with pytest.raises(TopologyError, match=part):
        parse(text, "f")
