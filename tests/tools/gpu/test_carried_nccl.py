"""An NCCL that is brought along: packed, found, tried before it is used, and left out where it does not work."""

import json
import lzma
import os
import sys
import zipfile

import pytest

from tests.tools.gpu import stand_in
from tests.tools.gpu.running import wrong
from tests.tools.gpu.test_fatbin import CUBIN, PTX, container, elf, entry

INSIDE = "nvidia/nccl/lib/libnccl.so.2"


def library_of(*archs):
    codes = [entry(CUBIN, arch, os.urandom(3000)) for arch in archs] + [entry(PTX, max(archs), os.urandom(500))]
    return bytes(elf(__text=b"code of the host", __nv_fatbin=container(*codes), __debug_info=bytes(5000)))


def wheel_in(folder, library):
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "nvidia_nccl_cu13-2.31.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(INSIDE, library)
    return wheel


def cut_up(file, name):
    whole = file.read_bytes()
    step = -(-len(whole) // 3)
    for place in range(3):
        (file.parent / f"{name}.{place:02}").write_bytes(whole[place * step : (place + 1) * step])
    file.unlink()


@pytest.mark.parametrize("form", ["library", "wheel", "wheel in parts", "packed", "packed in parts"])
def test_every_form_is_found(tools, tmp_path, form):
    folder, scratch, library = tmp_path / "carried", tmp_path / "scratch", library_of(80, 90)
    wheel = wheel_in(folder, library)
    if form == "library":
        (folder / INSIDE).parent.mkdir(parents=True)
        (folder / INSIDE).write_bytes(library)
    elif form == "wheel in parts":
        cut_up(wheel, "nccl.whl")
    elif form.startswith("packed"):
        (folder / "libnccl.so.2.xz").write_bytes(lzma.compress(library))
        if form == "packed in parts":
            cut_up(folder / "libnccl.so.2.xz", "libnccl.so.2.xz")
    what, found = next(tools.carried_nccl.libraries_in(folder, scratch))
    assert what == {"l": "a library", "w": "a wheel", "p": "a packed library"}[form[0]]
    assert found.read_bytes() == library and found.name == "libnccl.so.2"  # the name under which it comes before others


@pytest.mark.parametrize(("make", "words"), [(True, "expected libnccl.so.2, or "), (False, "no such folder")])
def test_what_is_not_there(tools, tmp_path, make, words):
    folder = tmp_path / "none"
    if make:
        folder.mkdir()
    with pytest.raises(FileNotFoundError, match=words):
        next(tools.carried_nccl.libraries_in(folder, tmp_path))


def test_a_wheel_is_cut_down_and_packed(tools, tmp_path, monkeypatch, capsys):
    """What is unpacked on the other side is the library with one architecture; parts where it is large."""
    wheel, out = wheel_in(tmp_path / "wheels", library_of(75, 90, 100)), tmp_path / "out"
    for most, names in ((60 << 20, ["libnccl.so.2.xz"]), (2000, ["libnccl.so.2.xz.00", "libnccl.so.2.xz.01"])):
        monkeypatch.setattr(tools.slim_nccl, "PART_BYTES", most)
        monkeypatch.setattr(sys, "argv", ["slim_nccl.py", str(wheel), str(out), "--arch", "sm_90"])
        assert tools.slim_nccl.main() == 0
        assert sorted(path.name for path in out.iterdir()) == names  # nothing is left of what was packed before
        ((_, found),) = tools.carried_nccl.libraries_in(out, tmp_path / "scratch")
        (left,) = tools.fatbin.containers(found.read_bytes())
        assert [one.arch for one in left.entries] == [90]
    said = capsys.readouterr().out
    assert "cubin sm_75: 1 entries" in said and said.count("cubin sm_90: 1 entries") == 4
    assert "libnccl.so.2.xz.01" in said.splitlines()[-1]


def test_a_wheel_without_the_architecture(tools, tmp_path, monkeypatch, capsys):
    wheel = wheel_in(tmp_path / "wheels", library_of(75, 80))
    monkeypatch.setattr(sys, "argv", ["slim_nccl.py", str(wheel), str(tmp_path / "out")])
    assert tools.slim_nccl.main() == 1 and not (tmp_path / "out").exists()
    assert "no device code that sm_90 runs; there is sm_75, sm_80" in capsys.readouterr().err


CHECK = """
import os, sys
library = os.environ["LD_PRELOAD"].split(":")[0]
with open(os.environ["SEEN"], "a") as seen:
    seen.write(library + "\\n")
assert os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" and sys.argv[-1].endswith("nccl_check.py")
if not open(library, "rb").read().endswith(b"works"):
    print("Traceback", "unhandled cuda error: named symbol not found", sep="\\n", file=sys.stderr)
    sys.exit(1)
print("2.31.2")
"""


@pytest.mark.parametrize("works", ["packed", "wheel", "none"])
def test_a_library_is_tried_before_it_is_used(tools, tmp_path, monkeypatch, works):
    """One that fails is followed by the wheel that lies beside it; where none works, that is what failed."""
    script, folder, seen = tmp_path / "check.py", tmp_path / "carried", tmp_path / "seen"
    script.write_text(CHECK.replace("\\\\", "\\"))
    monkeypatch.setenv("SEEN", str(seen))
    monkeypatch.setenv("NCCL_DIR", str(folder))
    monkeypatch.setenv("PYTHON", f"{sys.executable} {script}")
    wheel_in(folder, b"wheel " + (b"works" if works == "wheel" else b""))
    (folder / "libnccl.so.2.xz").write_bytes(lzma.compress(b"packed " + (b"works" if works == "packed" else b"")))
    results = tools.results.Results(tmp_path / "out", "bench_ranks", "Ranks")
    given = tools.bench_ranks._preloaded(results, tmp_path / "scratch")
    results.end()
    tried = seen.read_text().split()
    assert len(tried) == (1 if works == "packed" else 2)
    assert given == ({} if works == "none" else {"LD_PRELOAD": tried[-1]})
    found = tools.results.read(tmp_path / "out")["bench_ranks"]
    failed = wrong(found)
    fault = "named symbol not found"
    if works == "none":
        assert (
            len(failed) == 1
            and failed[0].count(fault) == 2
            and failed[0].startswith("NCCL_DIR: no library in it works")
        )
    else:
        assert not failed and (fault in json.dumps(found["blocks"])) == (works == "wheel")


@pytest.mark.parametrize("right", [True, False])
def test_the_check_compares_values(tools, monkeypatch, capsys, right):
    if not right:
        monkeypatch.setattr(stand_in.Library, "all_gather", lambda self, x, into: None)
    assert tools.nccl_check.main() == (not right)
    said = capsys.readouterr()
    assert said.out == ("stand-in\n" if right else "")
    assert said.err == ("" if right else "NCCL stand-in gives wrong values between 2 ranks on this card\n")
