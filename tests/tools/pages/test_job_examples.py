"""Examples of the reference for `python -m attention`: each option is in one, and those that need no GPU run."""

import argparse
import os
import shlex
import subprocess
from importlib import import_module

import pytest

from attention.__main__ import COMMANDS, parser_of
from tests.attention.jobs.conftest import tiny_model  # noqa: F401 the fixture
from tools.pages.command_examples import EXAMPLES
from tools.pages.reference_text import is_shown


def lines_of(name):
    return EXAMPLES[f"python -m attention {name}"].strip().split("\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_in_an_example_of_its_job(name):
    subparsers = argparse.ArgumentParser(prog="python -m attention").add_subparsers()
    import_module(f"attention.jobs.{name}_job").add_arguments(subparsers)
    options = [action.option_strings for action in subparsers.choices[name]._actions if is_shown(action)]
    words = set(" ".join(lines_of(name)).split())
    assert options and [names for names in options if names and not words & set(names)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_each_example_is_a_command_line_of_its_job(name):
    for line in lines_of(name):
        words = shlex.split(line.partition("python -m attention ")[2])
        assert parser_of([name]).parse_args(words).job.name == f"attention {name}"


@pytest.mark.long
@pytest.mark.parametrize("name", ["generate", "decode"])  # a server goes on until it is stopped, by its own tests
def test_the_examples_run(name, tmp_path, tiny_model):  # noqa: F811
    """On a model that knows letters only."""
    (tmp_path / "text.txt").write_text("The river rises in the hills and runs to the sea.\n")
    for line in lines_of(name):
        if "--device cuda" not in line:
            done = subprocess.run(
                ["bash", "-c", line.replace("smollm2", str(tiny_model))],
                cwd=tmp_path,
                env={**os.environ},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{line}: {done.stderr[-1000:]}"
