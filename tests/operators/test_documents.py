"""The examples and the guide's code run, and print what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "custom_operator.py": ["longest runs of dry days: [78, 85, 80]", "laws that hold: shapes, purity, rows, identity"],
    "topk.py": ["1. item 36758: 4.732", "5. item 437273: 4.396"],
    "welford.py": ["column 0: 1000 values, mean -0.102, deviation 0.991", "column 2: 1000 values"],
}


def output_of(path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_alone(name):
    printed = output_of(ROOT / "docs/examples" / name)
    for part in EXAMPLES[name]:
        assert part in printed


def test_the_code_of_the_guide_runs(tmp_path):
    text = (ROOT / "docs/guide/operators.md").read_text()
    script = tmp_path / "guide.py"
    script.write_text("\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)))
    printed = output_of(script)
    assert "[11.   17.75 26.  ]" in printed
    assert "operator 'product' on y float64 [256], slope float64 [256]: ok" in printed
    assert "broken: identity, associativity" in printed


def test_links_of_the_guides_lead_somewhere():
    for page in (ROOT / "docs/guide").glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
