"""Evidence: machines by the words of their source, and the whole program on tables made by figures of their own."""

import json
import sys
from xml.etree import ElementTree

import pytest

from tests.calibration.tables import made_models
from tools.evidence import __main__ as program
from tools.evidence.gather import gather
from tools.evidence.machines import place_of, ports_named
from tools.evidence.page import order_right
from topocomm import TopocommError
from topocomm.calibration.error_report import RowError
from topocomm.calibration.measured_table import MeasuredRow, MeasuredTable
from topocomm.planning.libraries.job_shape import job_shape


def table(machine, hosts, ranks):
    return MeasuredTable("t", "t.json", "allreduce", "NCCL 2.27.3", ranks, hosts, (), machine=machine)


@pytest.mark.parametrize(
    ("machine", "hosts", "ranks", "family", "network_gb_per_s"),
    [
        ("ABCI compute node V: 4x V100-SXM2-16GB all-to-all NVLink2, 2x IB EDR 100G, fat tree", 4, 16, "v100-4", 25.0),
        ("8x H200, 8x 400G RoCE", 2, 16, "dgx-h200", 400.0),
        ("DGX H100: 8x H100-SXM5-80GB, NVSwitch gen3 with NVLS", 1, 8, "dgx-h100", 0.0),
        ("AWS p4d.24xlarge: 8x A100-SXM4-40GB, 4x 100G EFA", 4, 32, "p4d", 50.0),
        ("AWS p5: 8x H100, 3200 Gbps EFA", 2, 16, "dgx-h100", 400.0),
        ("8x A100, NVSwitch, HDR InfiniBand", 2, 16, "dgx-a100", 200.0),
        ("GB200 NVL72: racks of 18 trays", 36, 144, "gb200-nvl72", 3600.0),
        ("8x MI325X, xGMI", 1, 8, "mi325x-8", 0.0),
        ("2x A100-PCIe-40GB in one host, PCIe Gen4", 1, 2, "a100-pcie-2", 0.0),
        ("4 (one socket) of 8x RTX 4090 PCIe Gen4 x16", 1, 4, "rtx4090-pcie-4", 0.0),
        ("4x L40S", 1, 4, "rtx4090-pcie-4", 0.0),
    ],
)
def test_machines(machine, hosts, ranks, family, network_gb_per_s):
    place = place_of(table(machine, hosts, ranks))
    assert place.family == family
    assert len(place.ranks) == ranks
    assert job_shape(place.topology, place.ranks).network_gb_per_s == pytest.approx(network_gb_per_s)


@pytest.mark.parametrize(
    ("machine", "gb_per_s"), [("4x RTX 5090 PCIe Gen5", 64.0), ("4x L40S", 32.0), ("4x V100-PCIe-16GB", 16.0)]
)
def test_generations_of_pcie(machine, gb_per_s):
    place = place_of(table(machine, 1, 4))
    assert job_shape(place.topology, place.ranks).inner_gb_per_s == gb_per_s


def test_machines_that_are_not_known():
    with pytest.raises(TopocommError, match="no catalogue system for 'an abacus'"):
        place_of(table("an abacus", 1, 2))
    with pytest.raises(TopocommError, match="17 ranks on 2 hosts"):
        place_of(table("8x H100", 2, 17))
    with pytest.raises(TopocommError, match="16 ranks a host; dgx-h100 has 8"):
        place_of(table("8x H100", 1, 16))


def test_gpus_with_fewer_links():
    per_gpu = [
        sum(
            link.gb_per_s
            for link in place_of(table(words, 1, 8)).topology.links
            if link.src == "GPU0" and link.kind == "nvlink"
        )
        for words in ("8x H100", "8x H800", "8x A100", "8x A800")
    ]
    assert per_gpu == pytest.approx([450, 200, 300, 200])


def test_a_family_of_one_row_is_all_fitted(folder, monkeypatch, capsys):
    for path in folder.glob("*.json"):
        path.unlink()
    document = {"machine": "8x H200", "n_hosts": 1, "n_gpus": 8, "collective": "all_reduce", "library": "NCCL"}
    (folder / "one.json").write_text(json.dumps({**document, "rows": [{"bytes": 1 << 32, "time_us": 15824.0}]}))
    monkeypatch.setattr(sys, "argv", ["evidence", "--measured", str(folder)])
    assert program.main() == 0
    assert "Rows that were not fitted:\n\nNone." in capsys.readouterr().out


def test_ports():
    assert ports_named("8x A100-SXM4-40GB") is None
    assert ports_named("8x H100, 400 GB/s of something") is None
    assert ports_named("8x 400Gb/s") == (8, 50.0)
    assert ports_named("8x H100, RoCE 8x 2x200G") == (16, 25.0)
    assert ports_named("2x IB EDR 100G") == (2, 12.5)
    assert ports_named("NDR InfiniBand") == (None, 50.0)
    assert ports_named("32x 100G EFA") == (32, 12.5)


@pytest.fixture
def folder(tmp_path):
    """Tables of V100 hosts by NCCL, one that is suspect, and one of an unknown machine."""
    measured = tmp_path / "measured"
    measured.mkdir()
    for model in made_models(noise=0.05):
        own = model.table
        document = {
            "machine": "4x V100-SXM2 all-to-all NVLink2, 2x IB EDR",
            "n_hosts": own.hosts,
            "n_gpus": own.ranks,
            "collective": "all_reduce",
            "library": "NCCL 2.8.4",
            "rows": [{"bytes": row.payload_bytes, "time_us": row.time_us} for row in own.rows],
        }
        (measured / f"v100_{own.hosts}.json").write_text(json.dumps(document))
    (measured / "bad.json").write_text(json.dumps({**document, "suspect": True, "reason": "old plug-in"}))
    (measured / "odd.json").write_text(json.dumps({**document, "machine": "an abacus"}))
    (measured / "cut.json").write_text(json.dumps(document)[:-30])
    return measured


def test_what_is_left_out_is_named(folder):
    gathered = gather(folder)
    assert [(family.name, len(family.models)) for family in gathered.families] == [("v100-4", 4)]
    reasons = "\n".join(gathered.left_out)
    assert "bad: suspect: old plug-in" in reasons
    assert "no catalogue system for 'an abacus'" in reasons
    assert "cut.json: line 1: no JSON" in reasons


def test_the_page_and_its_pictures(folder, tmp_path, monkeypatch, capsys):
    page = tmp_path / "docs" / "results" / "simulator.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"# Title\n\nby hand\n\n{program.TEXT_BEGIN}\nold\n{program.TEXT_END}\n\nafter\n")
    monkeypatch.setattr(sys, "argv", ["evidence", "--measured", str(folder), "--write", str(page)])
    assert program.main() == 0
    text = page.read_text()
    assert "by hand" in text
    assert text.endswith("\nafter\n")
    assert "old\n" not in text
    assert "## v100-4" in text
    median = next(line for line in text.splitlines() if "from 1 MiB: median error" in line and "not fitted" in line)
    assert int(median.split("|")[3].split()[0]) < 10  # made by the model, with noise of 5 %
    picture = ElementTree.parse(tmp_path / "docs" / "pictures" / "simulator-v100-4.svg")
    dots = [each for each in picture.iter() if each.tag.endswith("circle") and each.get("r") == "2.2"]
    assert len(dots) == 4 * 13
    assert "prefers-color-scheme:dark" in (tmp_path / "docs/pictures/simulator-v100-4.svg").read_text()
    assert "left out: bad: suspect" in capsys.readouterr().err


def test_message_by_message(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["evidence", "--measured", str(folder), "--simulate"])
    assert program.main() == 0
    text = capsys.readouterr().out
    ring = next(line for line in text.splitlines() if line.startswith("| ring |"))
    low, high = (float(part) for part in ring.split("|")[5].split(" to "))
    assert 0.8 < low <= high < 1.05
    assert "52 calls, " in text


def test_without_a_fit(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["evidence", "--measured", str(folder), "--no-fit"])
    assert program.main() == 0
    text = capsys.readouterr().out
    assert ", 0 fitted." in text
    assert "What was fitted" not in text


def test_a_folder_without_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["evidence", "--measured", str(tmp_path)])
    with pytest.raises(SystemExit):
        program.main()
    assert "no table that can be used" in capsys.readouterr().err


def row(model, payload_bytes, measured_us, predicted_us):
    return RowError(model, MeasuredRow(payload_bytes, measured_us), predicted_us, False)


def test_order_of_pairs():
    a, b = made_models(hosts=(1, 2))
    other = made_models(hosts=(1,), collective="broadcast")[0]
    assert order_right([row(a, 8, 10, 10), row(a, 16, 20, 30)]) == (1, 1)
    assert order_right([row(a, 8, 10, 30), row(a, 16, 20, 20)]) == (0, 1)
    assert order_right([row(a, 8, 10, 30), row(a, 16, 11, 20)]) == (0, 0)  # they differ by less than a fifth
    assert order_right([row(a, 8, 10, 10), row(b, 8, 20, 30)]) == (0, 0)  # not as many ranks
    assert order_right([row(a, 8, 10, 10), row(other, 8, 20, 30)]) == (0, 0)  # another collective
