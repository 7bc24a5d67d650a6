"""Trees of `lspci -tv` as mails and logs carry them: their columns count."""

import pytest

from tests.topology.readers.pci.trees import server
from topocomm.errors import TopologyError
from topocomm.topology.readers.pci import lspci

PREFIXES = ["> ", ">", "> > ", ">> ", " > ", "2025-03-04 10:11:12 INFO ", "0: ", "[1,0]<stdout>:", "node| ", "# "]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_on_every_line(prefix):
    text = "".join(prefix + line for line in server().splitlines(True))
    assert lspci.matches(text)
    assert lspci.read(text, "box.txt") == lspci.read(server(), "box.txt")


def test_line_numbers():
    text = "".join(f"{i:6d}\t{line}" for i, line in enumerate(server().splitlines(True), 1))
    assert lspci.matches(text)
    assert lspci.read(text, "box.txt") == lspci.read(server(), "box.txt")


def test_quoted_with_text_around():
    tree = "".join(f"> {line}" for line in server().splitlines(True))
    text = f"On Monday somebody wrote:\n> The tree:\n> $ lspci -tv\n{tree}>\n> Regards\n\nThanks!\n"
    assert lspci.read(text, "box.txt") == lspci.read(server(), "box.txt")


def test_blanks_of_a_web_page():
    text = server().replace("  ", "&nbsp; ")
    indented = "".join(f"&nbsp;&nbsp;{line}" for line in text.splitlines(True))
    assert lspci.matches(indented)
    assert lspci.read(indented, "box.txt") == lspci.read(server(), "box.txt")


def test_lines_run_together():
    """The name of the upper line would have the lower one in it."""
    lines = server().splitlines(True)
    joined = refused = 0
    for i in range(1, len(lines) - 1):
        text = "".join([*lines[:i], lines[i].rstrip("\n"), *lines[i + 1 :]])
        joined += 1
        with pytest.raises(TopologyError):
            lspci.read(text, "box.txt")
        refused += 1
    assert joined == refused > 5
