"""Reference pages that are read from the code: commands from their parsers, errors from their classes, JSON schemas.

`docs/conf.py` writes them to docs/reference/generated when the site is built; pages beside that folder include them.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import topocomm
from topocomm import errors
from topocomm.cli.main import COMMANDS

from .command_examples import EXAMPLES

SCHEMAS = Path(topocomm.__file__).parent / "schemas"


def write_pages(folder: Path) -> None:
    """Write all generated pages to a folder; a page that has not changed keeps its time, so that Sphinx skips it."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"commands": commands_page(), "jobs": jobs_page(), "errors": errors_page(), "schemas": schemas_page()}
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def commands_page() -> str:
    """Return the commands of `topocomm` with all options."""
    modules = {name: f"topocomm.cli.{name}_command" for name in COMMANDS}
    return "\n".join(described("topocomm", modules, "add_parser", COMMANDS))


def jobs_page() -> str:
    """Return the jobs of `python -m attention` with all options."""
    modules = {name: f"attention.jobs.{name}_job" for name in ("generate", "serve", "decode")}
    return "\n".join(described("python -m attention", modules, "add_arguments", {}))


def described(prog: str, modules: dict[str, str], adder: str, summaries: dict[str, str]) -> Iterator[str]:
    """Yield the Markdown of commands, whose modules add their parsers by the function `adder`."""
    parser = argparse.ArgumentParser(prog=prog)
    subparsers = parser.add_subparsers()
    for name, module in modules.items():
        getattr(importlib.import_module(module), adder)(subparsers)
        yield from command_section(subparsers.choices[name], summaries.get(name, ""))


def command_section(parser: argparse.ArgumentParser, summary: str = "", level: int = 2) -> Iterator[str]:
    """Yield the Markdown of one parser: its description, a table of its options and examples."""
    yield f"{'#' * level} {parser.prog}\n"
    about = (parser.description or summary).strip()
    yield (about[:1].upper() + about[1:]).rstrip(".") + ".\n"
    rows = [option_row(action, parser.prog) for action in parser._actions if is_shown(action)]
    if rows:
        yield "| option | does |\n| --- | --- |"
        yield "\n".join(rows) + "\n"
    if parser.prog in EXAMPLES:
        yield f"```sh\n{EXAMPLES[parser.prog].strip()}\n```\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from command_section(inner, level=level + 1)


def is_shown(action: argparse.Action) -> bool:
    """True for options that a user is told of; `--help` goes without saying."""
    hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and action.help != argparse.SUPPRESS


def option_row(action: argparse.Action, prog: str) -> str:
    """Return the row of one option: its names and values, and its help."""
    metavar = action.metavar or action.dest.upper()
    value = metavar if isinstance(metavar, str) else " ".join(metavar)
    repeated = " ..." if action.nargs in ("+", "*") else ""
    names = ", ".join(action.option_strings)
    head = " ".join(part for part in (names, value + repeated if action.nargs != 0 else "") if part)
    text = in_code((action.help or "") % {**vars(action), "prog": prog})
    choices = ", ".join(f"`{choice}`" for choice in action.choices or ())
    return f"| `{cell(head)}` | {cell('; '.join(part for part in (choices, text) if part))} |"


def in_code(text: str) -> str:
    """Set options in a text as code, where they do not stand in code already."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<![\w-])(--[a-z][\w-]*)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def cell(text: str) -> str:
    """Escape what ends a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def errors_page() -> str:
    """Return a table of the error classes: what else each is, what it says, the exit status of a command."""
    rows = ["| class | is also | raised when | exit status |", "| --- | --- | --- | --- |"]
    for name, error in vars(errors).items():
        if not inspect.isclass(error) or error is errors.TopocommError:
            continue
        builtin = ", ".join(f"`{base.__name__}`" for base in error.__bases__ if base is not errors.TopocommError)
        said = (inspect.getdoc(error) or "").splitlines()[0].rstrip(".")
        rows.append(f"| `{name}` | {builtin} | {cell(said)} | {2 if issubclass(error, ValueError) else 1} |")
    return "\n".join(rows) + "\n"


def schemas_page() -> str:
    """Return the JSON schema files of the package as a list; empty where there are none."""
    files = sorted(SCHEMAS.glob("*.json"))
    names = [path.name.removesuffix(".json") for path in files]
    head = "A JSON Schema of each document and of its parts is printed by\n\n" if names else ""
    return head + "".join(f"- `topocomm schema {name}`\n" for name in names)
