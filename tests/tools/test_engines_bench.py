"""tools/bench/engines.py: a row for each way of merging by heads, whose results agree."""

import re
from pathlib import Path

import pytest

from tests.torch_jobs import torchrun

pytest.importorskip("torch")
TOOL = Path(__file__).parents[2] / "tools/bench/engines.py"
ROW = re.compile(r"^ {4}(\S+) +([\d,.]+) \([\d,.]+ to [\d,.]+\), ([\d,.]+)  ([\d.]+)$", re.MULTILINE)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_way_has_a_row(dtype):
    job = torchrun(2, [TOOL, "--shapes", "3x4x8", "--dtypes", dtype, "--blocks", "2"])
    assert job.returncode == 0 and f"3x4x8 {dtype}" in job.stdout, job.stderr[-3000:]
    rows = ROW.findall(job.stdout)
    assert [row[0] for row in rows] == ["topocomm", "ag_rs", "ag_rs32", "ag_ar", "a2a"]
    assert all(float(figure.replace(",", "")) > 0 for row in rows for figure in row[1:])
