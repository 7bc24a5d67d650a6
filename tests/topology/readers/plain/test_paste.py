"""What mails, web pages, launchers and terminals put around a capture; nothing of it may change what is read."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest

from topocomm.topology import recognise
from topocomm.topology.readers.plain.paste import (
    LISTED_GPU,
    MATRIX_ROW,
    filled_lines,
    markup_line,
    plain_lines,
    strip_prefix,
    unwrap,
)

DATA = Path(__file__).parents[3] / "data"
CAPTURES = [sorted(folder.iterdir())[0] for folder in sorted((DATA / "captures").iterdir())]
CAPTURES += [DATA / "topologies/h100-8-nics.txt"]


def each(mark):
    return lambda text: "\n".join(mark + line if line else line for line in text.split("\n"))


WAYS = {
    "quoted": each("> "),
    "quoted twice": each("> > "),
    "quoted without blanks": each(">"),
    "colours": lambda text: "\n".join(f"\x1b[32m{line}\x1b[0m" for line in text.split("\n")),
    "hard blanks": lambda text: text.replace("  ", "\u00a0\u00a0"),
    "a web page's source": lambda text: f"<pre><code>{html.escape(text)}</code></pre>\n",
    "mpirun": each("[1,0]<stdout>:"),
    "srun": each("3: "),
    "pdsh": each("node-17: "),
    "Ray": each("\x1b[36m(Worker pid=4242, ip=10.0.0.2)\x1b[0m "),
    "a container": each("2024-05-01T10:00:00.123456789Z stdout F "),
    "the journal": each("May  1 10:00:00 node-17 run.sh[4242]: "),
    "a pod": each("[pod/job-worker-0/main] "),
    "Windows": lambda text: text.replace("\n", "\r\n"),
}


def loaded(text, tmp_path):
    """A text read from a file, as the command line does."""
    path = tmp_path / "capture.txt"
    path.write_bytes(text.encode())
    return recognise.load(path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.parent.name)
def test_captures_survive_being_pasted(path, way, tmp_path):
    text = path.read_text()
    plain, pasted = loaded(text, tmp_path), loaded(WAYS[way](text), tmp_path)
    assert replace(pasted, warnings=()) == replace(plain, warnings=())
    assert len(pasted.warnings) == len(plain.warnings)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.parent.name)
def test_lines_keep_their_numbers(path):
    """Messages name lines."""
    text = path.read_text()
    assert all(unwrap(way(text)).count("\n") == way(text).count("\n") for way in WAYS.values())
    assert len(plain_lines(text)) == text.count("\n") + 1


def test_a_mail_with_an_answer_above():
    quoted = "".join(f"> line {i}\n" for i in range(4))
    assert unwrap(f"Thank you, that is:\n\n{quoted}") == "Thank you, that is:\n\n" + quoted.replace("> ", "")
    assert unwrap("one\ntwo\nthree\n> four\n") == "one\ntwo\nthree\n> four\n"


def test_labels_of_several_writers_stay():
    text = "".join(f"{rank}: line\n" for rank in (0, 1) * 3)
    assert unwrap(text) == text
    assert unwrap(text.replace("1:", "0:")) == "line\n" * 6


def test_plain_lines():
    text = "\ufeff<p>\x1b[4mGPU0&nbsp;\t X \x1b[0m</p>\r\n> GPU1\n| a | b |\n[1mbold\u00a0"
    assert plain_lines(text) == ["GPU0 \t X", "GPU1", "\t a \t b", "bold"]


def test_markup_is_found_by_line():
    assert markup_line("a\nb <br> c") == 2
    assert markup_line("a\n\nb&nbsp;c") == 3
    assert markup_line("a < b") is None


@pytest.mark.parametrize("prefix", ["2024-06-01 12:00:0{} INFO ", "node| ", "{}:", "    {}\t", "# "])
def test_a_prefix_with_other_numbers_on_each_line(prefix):
    lines = ["\tGPU0\tGPU1", "GPU0\t X \tNV4", "GPU1\tNV4\t X "]
    prefixed = [prefix.format(i) + line for i, line in enumerate(lines)]
    stripped = strip_prefix(prefixed, MATRIX_ROW)
    assert [line.split() for line in stripped] == [line.split() for line in lines]


def test_text_before_a_row_is_a_prefix_only_where_lines_around_have_it():
    lines = ["see GPU 0: NVIDIA A100", "Link 0: 25 GB/s"]
    assert strip_prefix(lines, LISTED_GPU) == lines
    assert strip_prefix(["x" * 250 + " GPU0 X"] * 2, MATRIX_ROW) == ["x" * 250 + " GPU0 X"] * 2
    assert strip_prefix(["x GPU0 X PIX", "x GPU1"], re.compile("GPU0")) == [" GPU0 X PIX", " GPU1"]


def test_filled_lines():
    assert list(filled_lines(["a b", "", " ", "c"], 1)) == [(3, ["c"])]
