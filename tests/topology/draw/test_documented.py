"""The pictures of the documentation are what the command draws today."""

from pathlib import Path

import pytest

from topocomm.cli.main import main

PICTURES = Path(__file__).parents[3] / "docs/pictures"


@pytest.mark.parametrize(
    ("file", "system", "hosts"),
    [
        ("dgx-1", "dgx-1-v100", 1),
        ("rtx4090-8", "rtx4090-pcie-8", 1),
        ("mi300x", "mi300x-8", 1),
        ("dgx-h100-pair", "dgx-h100", 2),
        ("gb200-nvl72", "gb200-nvl72", 1),
    ],
)
def test_pictures_are_up_to_date(tmp_path, file, system, hosts):
    new = tmp_path / "new.svg"
    assert main(["inspect", "--system", system, "--hosts", str(hosts), "--format", "svg", "--output", str(new)]) == 0
    assert new.read_bytes() == (PICTURES / f"{file}.svg").read_bytes()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("plan-dgx-h100-pair", "--system dgx-h100 --hosts 2 --operator attention.logsumexp --bytes 16512"),
        ("plan-sizes", "--system dgx-h100 --hosts 2 --sizes 64:64MiB:4"),
        ("plan-trees", "--system dgx-1-v100 --bytes 64MiB --objective throughput"),
    ],
)
def test_the_pictures_of_plans_are_up_to_date_and_small(tmp_path, file, words):
    new = tmp_path / "new.svg"
    assert main(["plan", *words.split(), "--format", "svg", "--output", str(new)]) == 0
    assert new.read_bytes() == (PICTURES / f"{file}.svg").read_bytes()
    assert new.stat().st_size < 60 * 1024
