"""The examples run, alone and as jobs, and so does the code of every page of the guide, in the order of the page."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.mpi import finished, mpirun

ROOT = Path(__file__).parents[2]
EXAMPLES = [path for path in sorted((ROOT / "docs/examples").glob("*.py")) if "--with-ft" not in path.read_text()]
"""All but those that kill a rank."""
PAGES = sorted((ROOT / "docs").glob("**/*.md"))
TUTORIALS = ROOT / "docs/tutorials"
"""Their blocks are files and commands: test_tutorials.py."""
PRINTS = {  # parts of what an example prints
    "cross_entropy": ["loss 25.1290 over 6 tokens and 5000 words"],
    "custom_operator": ["longest runs of dry days: [78, 85, 80]", "laws that hold: shapes, purity, rows, identity"],
    "decode": ["of 159 tokens", "60 tokens decoded as by one process"],
    "energy": ["curvature at 0: 0.699 from energies, variance 0.699"],
    "first": ["product ["],
    "linear_attention": ["990 tokens on "],
    "quantiles": ["50% of the weight is up to 1.001", "largest error of a share: 0.0037; the bound: 0.0098"],
    "recurrence": ["1000 steps; the last state is [4.897, 5.155, -4.075, 2.342]"],
    "topk": ["1. item 36758: 4.732", "5. item 437273: 4.396"],
    "tree": ["rank 0: "],
    "welford": ["column 0: 1000 values, mean -0.102, deviation 0.991", "column 2: 1000 values"],
}
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\s*^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
"""A block of code and, right after it, what it prints."""


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_as_jobs(path):
    job = mpirun(2, ["-W", "error", path], env={"PYTHONPATH": str(ROOT)})
    assert job.returncode == 0, job.stderr[-3000:]
    assert all(part in job.stdout for part in PRINTS.get(path.stem, [])), job.stdout


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_alone(path):
    job = alone(path)
    assert job.returncode == 0, job.stderr[-3000:]
    assert all(part in job.stdout for part in PRINTS.get(path.stem, [])), job.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "```python" in page.read_text() and page.parent != TUTORIALS],
    ids=lambda page: page.stem,
)
def test_the_code_of_a_page_runs_and_prints_what_it_says(page, tmp_path):
    if page.stem == "jax":
        pytest.importorskip("jax", reason="needs jax: make test-jax")
    blocks = BLOCK.findall(page.read_text())
    script = tmp_path / f"page_{page.stem}.py"  # a page may be named like a package
    mark = "----- end of block"
    script.write_text("\n".join(f"{code}\nprint({mark!r}, flush=True)" for code, _ in blocks))
    job = alone(script)
    assert job.returncode == 0, job.stderr[-3000:]
    for (code, text), printed in zip(blocks, job.stdout.split(f"{mark}\n"), strict=False):
        assert not text or printed == text, f"{page.name}:\n{code}"


def test_links_lead_somewhere():
    for page in [*PAGES, *ROOT.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def alone(script):
    """The finished program on one process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    return finished([sys.executable, "-W", "error", str(script)], environment, 120)
