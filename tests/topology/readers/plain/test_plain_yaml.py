import pytest

from topocomm.topology.readers.plain import plain_yaml
from topocomm.topology.readers.plain.plain_yaml import PlainYamlError, loads


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("---\n", None),
        ("a: 1\nb:\n  c: d\n", {"a": "1", "b": {"c": "d"}}),
        ("a:\n- 1\n- b: 2\n  c: 3\n-\n  - x\n", {"a": ["1", {"b": "2", "c": "3"}, ["x"]]}),
        ("- - a\n  - b\n- c\n", [["a", "b"], "c"]),
        ("a: ['n[1-2]', m]\nb: []\n", {"a": ["n[1-2]", "m"], "b": []}),
        ("'k': \"v # w\"  # x\n", {"k": "v # w"}),
        ("a:\nb: x:y\nc: ''\n", {"a": None, "b": "x:y", "c": ""}),
        ("a: {b: yes, c: [~, 07]}\n", {"a": {"b": "yes", "c": ["~", "07"]}}),
        ("a: |\n  b\n  c\n", {"a": "b\nc\n"}),
    ],
)
def test_scalars_stay_texts(text, found):
    assert loads(text) == found


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a:\n- &b c\n", 2, "anchors, aliases and tags are not read here"),
        ("a: [b]\nc: *b\n", 2, "anchors, aliases and tags are not read here"),
        ("a: b\nc: !!python/name:os.system\n", 2, "anchors, aliases and tags are not read here"),
        ("a: b\nc: d\na: e\n", 3, "the key 'a' is there twice"),
        ("a: {b: c, b: d}\n", 1, "the key 'b' is there twice"),
        ("a: b\n? [c]\n: d\n", 2, "a key that is no text"),
        ("a: b\n---\nc: d\n", 2, "a second document"),
        ("a:\n\t- b\n", 2, "indent by blanks, not by tabs"),
        ("a: b\n  c: d\n", 2, "no YAML: mapping values are not allowed"),
        ("a:\n  - b\n - c\n", 3, "no YAML: did not find expected|no YAML: expected"),
        ("a: [n[1-2], m]\n", 1, "no YAML: did not find expected|no YAML: expected"),
        ("a: b\nc: \x07\n", 2, "the character '\\\\x07' is not allowed"),
        ("a: b\nc: \ud800\n", 2, "the character '\\\\ud800' is not allowed"),
        ("a: " + "[" * 60, 1, "nested more than 50 deep"),
        ("a:\n" + "- " * 60, 2, "nested more than 50 deep"),
        ("- a\n" * 5, 4, "5 lines; expected 3 at most"),
    ],
)
@pytest.mark.parametrize("compiled", [True, False])
def test_refusals_name_the_line(text, line, message, compiled, monkeypatch):
    """By PyYAML's compiled parser and by that in Python."""
    if not compiled:
        monkeypatch.delattr("yaml.CBaseLoader", raising=False)
    if text.startswith("- a"):
        monkeypatch.setattr(plain_yaml, "MAX_LINES", 3)
    with pytest.raises(PlainYamlError, match=message) as raised:
        loads(text)
    assert raised.value.line == line
