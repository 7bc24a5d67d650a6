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
    ],
)
def test_pictures_are_up_to_date(tmp_path, file, system, hosts):
    new = tmp_path / "new.svg"
    assert main(["inspect", "--system", system, "--hosts", str(hosts), "--format", "svg", "--output", str(new)]) == 0
    assert new.read_bytes() == (PICTURES / f"{file}.svg").read_bytes()


def test_the_picture_of_a_plan_is_up_to_date_and_small(tmp_path):
    new = tmp_path / "new.svg"
    machine = ["--system", "dgx-h100", "--hosts", "2"]
    value = ["--operator", "attention.logsumexp", "--bytes", "16512"]
    assert main(["plan", *machine, *value, "--format", "svg", "--output", str(new)]) == 0
    assert new.read_bytes() == (PICTURES / "plan-dgx-h100-pair.svg").read_bytes()
    assert new.stat().st_size < 60 * 1024
