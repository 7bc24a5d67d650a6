"""Examples of the reference for `python -m attention`: each option is in one, and those that need no GPU run."""

import shlex

import pytest

from attention.__main__ import COMMANDS, parser_of
from tests.attention.jobs.conftest import tiny_model  # noqa: F401 the fixture
from tests.tools.pages.examples import lacking, run_example, shown_options
from tools.pages.command_examples import EXAMPLES


def lines_of(name):
    return EXAMPLES[f"python -m attention {name}"].strip().split("\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_is_in_an_example_of_its_job(name):
    options = shown_options(f"attention.jobs.{name}_job", "add_arguments")
    assert options and lacking(options, " ".join(lines_of(name))) == []


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
            run_example(line.replace("smollm2", str(tiny_model)), tmp_path)
