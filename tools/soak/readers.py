"""Damaged captures: for any damage to a tool's output its reader returns a topology or raises a clear error, at once.

    python tools/soak/readers.py --inputs 100000 [--seed 1] [--only nccl_xml]

Takes the captures of the tests, damages bytes, lines and cells of each at random and gives them to the reader
that knew the capture, and one in ten to the search for a reader. Then every capture is blown up to a mebibyte in
several ways. Nothing but `TopologyError` may come out, and no input may take a second of the processor, of a slow one
somewhat more. Ends at the first failure: with the seed and number that repeat it, and the input in a file.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from topocomm.errors import TopologyError
from topocomm.topology import recognise
from topocomm.topology.readers.plain.paste import unwrap
from topocomm.topology.readers.plain.topology_json import dumps

TESTS = Path(__file__).parents[2] / "tests"
CAPTURES = (TESTS / "data/topologies", TESTS / "data/captures")
ENDINGS = (".txt", ".xml", ".json", ".log")
LIMIT_S, ADDITIONS = 1.0, 15_000_000
"""Limit of CPU seconds for an input of 1 MiB, or what so many additions take where that is longer."""
MEBIBYTE = 1 << 20
ODD = (
    "",
    "-1",
    "0",
    "99999999999999999999",
    "1e308",
    "NaN",
    "N/A",
    "null",
    "0x",
    "X",
    "SYS",
    "\x1b[4m",
    "é",
    "\t",
    "&amp;",
    "<",
)
LABELS = ("> ", "0: ", "[1,0]<stdout>:", "2026-01-02T03:04:05.678Z ", "host-a: ", "[pod/a/b] ", "    ")
TOKEN = re.compile(r"[^\s\"',<>=:]+")
Reader = Callable[[str, str], object]


def main() -> None:
    """Read all inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1000, help="damaged inputs for each reader (default 1000)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 31))
    parser.add_argument("--only", help="one reader")
    options = parser.parse_args()
    captures = captures_by_reader()
    names = [name for name in sorted(captures) if options.only in (None, name)]
    with ProcessPoolExecutor() as pool:
        runs = [pool.submit(soak, name, captures[name], options.inputs, options.seed) for name in names]
        for run in runs:
            try:
                print(run.result(), flush=True)
            except Found as found:
                pool.shutdown(cancel_futures=True)
                raise SystemExit(str(found)) from None
    print(f"readers: {len(names)}, seed {options.seed}: nothing but clear errors")


class Found(Exception):
    """A fault of a reader, which ends the run."""


def soak(name: str, texts: list[str], inputs: int, seed: int) -> str:
    """One reader's inputs; a line of figures.

    Raises:
        Found: An input gave another exception, or took too long.
    """
    began, read = time.perf_counter(), reader_of(name)
    counts = [0, 0]
    for number in range(inputs):
        rng = random.Random(f"{seed} {name} {number}")
        reading = recognise.read if number % 10 == 0 else read
        counts[outcome(reading, damaged(rng, texts), f"{name}, seed {seed} {number}")] += 1
    longest_s = max(large_s(read, text, name) for text in texts)
    return (
        f"{name}: {inputs} inputs of {len(texts)} captures, {counts[1]} read, {counts[0]} refused, "
        f"{time.perf_counter() - began:.0f} s; a mebibyte takes at most {longest_s:.2f} s"
    )


def captures_by_reader() -> dict[str, list[str]]:
    """The captures by the name of the reader that knows them; plain topologies of the catalogue for JSON."""
    from topocomm.topology.catalog.systems import catalog

    found: dict[str, list[str]] = {}
    paths = [path for folder in CAPTURES for path in sorted(folder.rglob("*")) if path.suffix in ENDINGS]
    texts = [path.read_text(errors="replace") for path in paths]
    texts += [dumps(catalog("dgx-a100")), dumps(catalog("mi250x", hosts=2))]
    for text in texts:
        reader = recognise.reader_for(text)
        if reader is not None:
            found.setdefault(reader.__name__.rpartition(".")[2], []).append(text)
    return found


def reader_of(name: str) -> Reader:
    """Return the reader's function."""
    read: Reader = next(one.read for one in recognise.readers() if one.__name__.endswith(f".{name}"))
    return read


def outcome(read: Reader, text: str, what: str) -> bool:
    """Whether the text is read; anything but a clear error ends the run."""
    try:
        read(unwrap(text), "capture")
    except TopologyError as error:
        if str(error).strip():
            return False
        fail(text, f"{what}: an error without words")
    except Exception:  # noqa: BLE001
        fail(text, f"{what}:\n{traceback.format_exc()}")
    return True


def fail(text: str, what: str) -> None:
    """End the run, and keep the input."""
    with tempfile.NamedTemporaryFile(
        "w", suffix=".txt", delete=False, encoding="utf-8", errors="surrogatepass"
    ) as file:
        file.write(text)
    raise Found(f"{what}\nthe input is in {file.name}")


def damaged(rng: random.Random, texts: list[str]) -> str:
    """One of the texts after one to five damages, now and then with something before every line."""
    text = rng.choice(texts)
    if rng.randrange(8) == 0:
        label = rng.choice(LABELS)
        text = "\n".join(label + line for line in text.split("\n"))
    for _ in range(rng.randint(1, 5)):
        text = rng.choice((_bytes, _lines, _cells))(rng, text, texts)
    return text


def _bytes(rng: random.Random, text: str, _texts: list[str]) -> str:
    at = rng.randrange(len(text) + 1)
    end = min(len(text), at + rng.choice((0, 1, 1, 2, 8, 60, len(text))))
    put = rng.choice(("", chr(rng.randrange(1, 0x250)), text[at:end] * 2, rng.choice(ODD)))
    return text[:at] + put + text[end:]


def _lines(rng: random.Random, text: str, texts: list[str]) -> str:
    lines = text.split("\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        del lines[at : at + rng.randint(1, 3)]
    elif kind == 1:
        lines.insert(other, lines[at])
    elif kind == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    elif kind == 4:
        lines.insert(at, rng.choice(rng.choice(texts).split("\n")))
    else:
        lines[at] = rng.choice((" ", "\t", "> ", "\x1b[1m", "")) + lines[at].replace(
            "\t", rng.choice((" ", "  ", "\t\t"))
        )
    return "\n".join(lines)


def _cells(rng: random.Random, text: str, texts: list[str]) -> str:
    cells = list(TOKEN.finditer(text))
    if not cells:
        return text
    cell = rng.choice(cells)
    put = rng.choice(ODD)
    if rng.random() < 0.6 and (others := TOKEN.findall(rng.choice(texts))):
        put = rng.choice(others)
    return text[: cell.start()] + put + text[cell.end() :]


def large_s(read: Reader, text: str, name: str) -> float:
    """The longest processor time that a mebibyte made of the text takes."""
    lines = text.split("\n")
    middle = len(lines) // 2
    word = max(TOKEN.findall(text), key=len, default="x")
    times = 1 + MEBIBYTE // max(1, len(text))
    forms = {
        "the text again and again": text * times,
        "its first line again and again": "\n".join([lines[0]] * (1 + MEBIBYTE // (len(lines[0]) + 1))),
        "its middle line again and again": "\n".join(
            [*lines[:middle], *[lines[middle]] * (1 + MEBIBYTE // (len(lines[middle]) + 1)), *lines[middle:]]
        ),
        "one long line": text.replace("\n", " ") * times,
        "one long word": text.replace(word, word * (1 + MEBIBYTE // len(word)), 1),
        "blanks": text.replace(" ", " " * (MEBIBYTE // max(1, text.count(" ")))),
    }
    longest_s = 0.0
    for form, large in forms.items():
        large = large[:MEBIBYTE]
        began = time.process_time()
        outcome(read, large, f"{name}, {form}")
        taken_s = time.process_time() - began
        longest_s = max(longest_s, taken_s)
        if taken_s > LIMIT_S and taken_s > additions_s():
            fail(large, f"{name}: {taken_s:.2f} s for a mebibyte: {form}")
    return longest_s


def additions_s() -> float:
    """Processor time of `ADDITIONS`, at the speed that the processor has now."""
    began, total = time.process_time(), 0
    for number in range(ADDITIONS):
        total += number
    return time.process_time() - began


if __name__ == "__main__":
    main()
