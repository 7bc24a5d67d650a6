"""The report: what is in it, and that no name, path or address is."""

import platform
import re
from dataclasses import replace
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from tests.doctor.findings import OPEN_MPI
from topocomm import catalog
from topocomm.cli.main import main
from topocomm.doctor import report as registered
from topocomm.doctor.anonymous import Anonymous, anonymous
from topocomm.doctor.examine import check_machine
from topocomm.doctor.finding import Finding
from topocomm.doctor.report import Here, findings_text, pair_matrices, report_text, section_text
from topocomm.topology.model import Device
from topocomm.topology.readers.nvidia import nvidia_smi
from topocomm.topology.readers.plain import topology_json
from topocomm.topology.readers.plain.topology_json import dumps

HOSTS = ("fermi-node17.cluster.acme.com", "fermi-node18.cluster.acme.com")
PLANTED = (
    "fermi",
    "node17",
    "node18",
    "acme",
    "bjones",
    "smith",
    "mainframe7",
    "secretproject",
    "s3cr3t",
    "10.20.30.40",
    "192.168",
    "2001:db8",
    "fe80",
    "00:1b:21",
    "001b21aabbcc",
    "b8-59-9f",
    "506b4b0300ca1234",
    "506b:4b03",
    "7d1f4c5e",
    "1320420012345",
    "SN77X",
    "prod-gw",
)
TEXTS = (
    "bjones@fermi-node17:~$ nvidia-smi topo -m",
    "fermi-node17:4711:4712 [0] NCCL INFO Bootstrap : Using ib0:10.20.30.40<0>",
    "otherhost-prod-gw:4711:4712 [0] NCCL INFO",
    "read from /home/bjones/secretproject/topo.txt, also C:\\Users\\bjones\\secretproject\\topo.txt",
    "MY_HOME is /Users/smith/secretproject and ~/secretproject/x",
    "kept in /scratch/secretproject/dumps/a.txt; on prod-gw.acme.com",
    "addresses 10.20.30.40:8080, 192.168.1.7, 2001:db8::7, fe80::21b:21ff:feaa:bbcc%eth0, tcp://prod-gw:99/s3cr3t",
    "MAC 00:1b:21:aa:bb:cc and b8-59-9f-12-34-56 and 001b21aabbcc",
    "GUID 0x506b4b0300ca1234 or 506b:4b03:00ca:1234, port GUID 506b4b0300ca1235",
    "UUID GPU-7d1f4c5e-11aa-22bb-33cc-44dd55ee66ff, bare 7d1f4c5e-11aa-22bb-33cc-44dd55ee66ff",
    "Serial Number : 1320420012345, S/N: SN77X9, board serial SN77X9",
    "host FERMI-NODE17 and FERMI-NODE18.cluster.acme.com. User bjones's job",
)
ENVIRONMENT = {
    "HOME": "/srv/accounts/bjones",
    "USER": "bjones",
    "HOSTNAME": "mainframe7",
    "PMIX_HOSTNAME": "mainframe7.acme.com",
    "PMIX_SERVER_TMPDIR": "/tmp/prte.mainframe7.1000/dvm.77",
    "PMIX_NAMESPACE": "prterun-mainframe7-77@1",
    "OMPI_MCA_btl_tcp_if_include": "10.20.30.0/24",
    "OMPI_FILE_LOCATION": "/srv/accounts/bjones/venv/lib",
    "MPI4PY_LIBMPI": "/opt/acme/bjones/libmpi.so",
    "NCCL_SOCKET_IFNAME": "enx001b21aabbcc",
    "NCCL_TOPO_FILE": "/scratch/secretproject/topo.xml",
    "NCCL_API_KEY": "s3cr3t",
    "OTHER": "s3cr3t",
}


@pytest.fixture
def planted(monkeypatch):
    """A cluster with names and addresses wherever a text can be."""
    monkeypatch.setattr(platform, "node", lambda: "mainframe7.acme.com")
    cluster = catalog("dgx-h100", hosts=2)
    text = dumps(cluster)
    for i, host in enumerate(HOSTS):
        text = text.replace(f'"h{i}/', f'"{host}/').replace(f'"h{i}"', f'"{host}"')
    cluster = topology_json.read(text, "x.json")
    extra = (
        Device(f"{HOSTS[0]}/enx001b21aabbcc", "nic", HOSTS[0], "enx001b21aabbcc"),
        Device(f"{HOSTS[0]}/gid-506b4b0300ca1234", "nic", HOSTS[0], "GPU-7d1f4c5e-11aa-22bb-33cc-44dd55ee66ff"),
    )
    return replace(
        cluster,
        name="bjones-fermi-node17",
        source="nvidia-smi topo -m of bjones@fermi-node17",
        devices=(*cluster.devices, *extra),
        warnings=TEXTS,
        facts={"uuids": {"GPU0": "GPU-7d1f4c5e-11aa-22bb-33cc-44dd55ee66ff"}},
    )


def report(topology, *, inputs=("/home/bjones/fermi-node17.txt",), here=True):
    names = anonymous(topology, ENVIRONMENT, inputs)
    findings = [*check_machine(topology), *(Finding("warn", "settings", text, text) for text in TEXTS)]
    own = Here(ENVIRONMENT, "Open MPI v5.0.11, package: Open MPI bjones@mainframe7 Distribution")
    return report_text(findings, topology, names, here=own if here else None, ways=[f"way {TEXTS[0]}"])


def test_no_planted_name_is_left(planted):
    text = report(planted)
    left = [word for word in PLANTED if word.lower() in text.lower()]
    assert left == [], [line for line in text.splitlines() if any(word.lower() in line.lower() for word in left)]


def test_the_block_is_fenced_and_says_what_it_is(planted):
    lines = report(planted).splitlines()
    assert (lines[0], lines[-1]) == ("```text", "```")
    assert sum("```" in line for line in lines) == 2
    head = " ".join(lines[1:6])
    for word in (
        "Anonymised",
        "host names",
        "user names",
        "home directories",
        "IP and MAC",
        "GUIDs",
        "UUIDs",
        "serial",
    ):
        assert word in head
    assert report(planted).isascii()


def test_what_is_useful_is_left(planted):
    text = report(planted)
    for part in (
        "host0",
        "host1",
        "NCCL_SOCKET_IFNAME=enx(address)",
        "PMIX_HOSTNAME=host2",
        "NCCL_API_KEY=(not shown)",
        "Open MPI v5.0.11",
        "numpy",
        "16 gpu endpoints on 2 hosts",
        planted.digest[:12],
        "NVLinks        all 2 hosts: 18 on each of 8 GPUs",
        "GPU0  X     NV18",
        "NIC7",
    ):
        assert part in text, part
    assert "OTHER" not in text


def test_a_dump_says_nothing_of_this_process(planted):
    text = report(planted, here=False)
    assert "Environment" not in text
    assert "Open MPI" not in text
    assert "topocomm" in text


def test_the_matrix_can_be_read_again():
    machine = catalog("dgx-1-v100")
    again = nvidia_smi.read("\n".join(pair_matrices(machine)), "report.txt")
    told = {(pair.a, pair.b): pair.code for pair in machine.pairs}
    assert {(pair.a, pair.b): pair.code for pair in again.pairs} == told
    assert [again.by_id[f"GPU{i}"].numa for i in range(8)] == [0] * 4 + [1] * 4


def test_large_machines_have_their_tables_cut():
    machine = catalog("dgx-h100")
    many = replace(machine, devices=(*machine.devices, *(Device(f"GPU{i}", "gpu") for i in range(8, 100))))
    assert "(68 more GPUs and NICs)" in pair_matrices(many)


def test_the_command_on_a_dump(capsys, tmp_path, monkeypatch, planted):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "bjones-fermi-node17.json"
    file.write_text(dumps(planted))
    assert main(["doctor", "--input", str(file), "--report"]) == 0
    out = capsys.readouterr().out
    assert not [word for word in PLANTED if word.lower() in out.lower()]
    assert re.search(r"^ok    topology       input0 \(", out, re.MULTILINE)


@pytest.mark.parametrize("width", [None, 50, 120])
def test_text_counts_levels_and_fits_the_terminal(width):
    findings = [Finding("FAIL", "topology", "word " * 60, "repair it " * 15), Finding("ok", "a", "b")]
    text = findings_text(findings) if width is None else findings_text(findings, width)
    assert (width or 80) - 12 < max(map(len, text.splitlines())) <= (width or 80)
    assert text.splitlines()[-1] == "1 FAIL, 1 ok"
    assert "-> repair it" in text


def test_the_report_shows_variables_and_hides_secrets():
    environment = {
        "OMPI_MCA_x": "1",
        "PMIX_SERVER_URI": "tcp://1",
        "OMPI_KEY": "k",
        "HOME": "/h",
        "TOPOCOMM_CHECK": "first",
    }
    machine = catalog("dgx-h100")
    text = report_text([], machine, anonymous(machine, environment), here=Here(environment, OPEN_MPI))
    for part in (
        "OMPI_MCA_x=1",
        "TOPOCOMM_CHECK=first",
        "PMIX_SERVER_URI=(not shown)",
        "OMPI_KEY=(not shown)",
        OPEN_MPI,
        f"digest {machine.digest[:12]}",
    ):
        assert part in text
    assert "HOME" not in text


@pytest.fixture
def packages(monkeypatch):
    """Packages that have registered modules; a module that raises has an exception in its place."""

    def install(**modules):
        def load(self):
            module = modules[self.name]
            if isinstance(module, Exception):
                raise module
            return module

        monkeypatch.setattr(EntryPoint, "load", load)
        entries = [EntryPoint(name, f"{name}.doctor", registered.GROUP) for name in reversed(modules)]
        monkeypatch.setattr(registered, "entry_points", lambda group: entries if group == registered.GROUP else [])

    return install


def test_sections_by_name(packages):
    one, two = (SimpleNamespace(sections=lambda title=title: [(title, ["said"])]) for title in ("One", "Two"))
    packages(a=one, b=two)
    assert registered.registered_sections() == [("One", ["said"]), ("Two", ["said"])]


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("No module named 'x'"), OSError("libcuda.so.1"), RuntimeError("no driver")]
)
def test_what_cannot_speak_is_said(packages, error):
    packages(a=error, b=SimpleNamespace(sections=lambda: [("Two", ["said"])]), c=SimpleNamespace())
    broken, two, without = registered.registered_sections()
    assert broken == ("a", [f"a.doctor has nothing to say: {type(error).__name__}: {error}"])
    assert two == ("Two", ["said"]) and "AttributeError" in without[1][0]


def test_lines_are_cut():
    text = section_text("Title", ["  begin " + "word " * 40])
    first, second, *rest = text.splitlines()
    assert (first, second) == ("", "Title") and len(rest) == 3
    assert rest[0].startswith("  begin") and all(line.startswith("      word") for line in rest[1:])
    _, _, *rows = section_text("Title", ["  call   kernel  " + "why " * 40], 60).splitlines()
    assert len(rows) > 2 and all(line.startswith(" " * 17 + "why") for line in rows[1:])
    assert max(map(len, rows)) <= 60


def test_it_is_printed_below_the_findings(packages, capsys, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    packages(a=SimpleNamespace(sections=lambda: [("My section", ["  told of /home/somebody/x"])]))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("\nMy section\n  told of /home/somebody/x\n")
    assert main(["doctor", "--report"]) == 0
    report = capsys.readouterr().out
    assert "My section\n  told of ~" in report and "somebody" not in report
    assert main(["doctor", "--system", "dgx-h100"]) == 0  # a machine that is given: not this one's
    assert "My section" not in capsys.readouterr().out


def test_a_report_without_sections():
    assert "My section" not in report_text([], None, Anonymous({}))
