"""What mails, web pages, launchers and terminals put around a capture; nothing of it may change what is read."""

import html
from dataclasses import replace

from topocomm.topology import recognise
from topocomm.topology.readers.plain.paste import unwrap


def _each(mark):
    return lambda text: "\n".join(mark + line if line else line for line in text.split("\n"))


WAYS = {
    "quoted": _each("> "),
    "quoted twice": _each("> > "),
    "quoted without blanks": _each(">"),
    "colours": lambda text: "\n".join(f"\x1b[32m{line}\x1b[0m" for line in text.split("\n")),
    "hard blanks": lambda text: text.replace("  ", "\u00a0\u00a0"),
    "a web page's source": lambda text: f"<pre><code>{html.escape(text)}</code></pre>\n",
    "mpirun": _each("[1,0]<stdout>:"),
    "srun": _each("3: "),
    "pdsh": _each("node-17: "),
    "Ray": _each("\x1b[36m(Worker pid=4242, ip=10.0.0.2)\x1b[0m "),
    "a container": _each("2024-05-01T10:00:00.123456789Z stdout F "),
    "the journal": _each("May  1 10:00:00 node-17 run.sh[4242]: "),
    "a pod": _each("[pod/job-worker-0/main] "),
    "Windows": lambda text: text.replace("\n", "\r\n"),
}


def read_file(text, tmp_path):
    """A text read from a file, as the command line does."""
    path = tmp_path / "capture.txt"
    path.write_bytes(text.encode())
    return recognise.load(path)


def assert_survives(text, tmp_path, way):
    """A text pasted in one of the ways says what it said before."""
    plain, pasted = read_file(text, tmp_path), read_file(WAYS[way](text), tmp_path)
    assert replace(pasted, warnings=()) == replace(plain, warnings=())
    assert len(pasted.warnings) == len(plain.warnings)


def assert_lines_stay(text):
    """Messages name lines, so unwrapping may add and drop none."""
    assert all(unwrap(way(text)).count("\n") == way(text).count("\n") for way in WAYS.values())
