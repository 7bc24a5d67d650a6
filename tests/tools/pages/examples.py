"""What the tests of the references' examples share."""

import argparse
import os
import subprocess
from importlib import import_module

from tools.pages.reference_text import is_shown


def shown_options(module, add):
    """The options that a command's help shows, each as its names; `add` is the module's function that adds them."""
    subparsers = argparse.ArgumentParser(prog="example").add_subparsers()
    getattr(import_module(module), add)(subparsers)
    (parser,) = set(subparsers.choices.values())
    return [action.option_strings for action in parser._actions if is_shown(action)]


def lacking(options, text):
    """Those options of which no name is a word of the text."""
    words = set(text.split())
    return [names for names in options if names and not words & set(names)]


def run_example(line, directory):
    """Run one line of the shell in a directory; it must end with status 0."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=directory,
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stderr[-1000:]}"
