"""run.sh: all parts in one document, a status that tells, and nothing lost where a part hangs."""

import re
import sys

import pytest

from tests.tools.gpu.running import TOOLS, finished, parts_of, run_all


def test_a_kernel_that_is_wrong_fails_the_run(tmp_path):
    """The planted fault is in what the decode kernel wrote."""
    plant = tmp_path / "plant.py"
    plant.write_text("""
import sys, attention.gpu.decode as decode
launch = decode._launch
def wrong(q, k, v, spec, seen, scales, out):
    launch(q, k, v, spec, seen, scales, out)
    out.out.view(-1)[0] += 1e-3
decode._launch = wrong
if sys.argv[0].endswith("check_kernels.py"):
    sys.argv += ["--only", "0", "11"]
""")
    out = tmp_path / "out"
    status, said = run_all(out, "facts:60 check_kernels:100", PLANT=str(plant))
    assert status == 1, said
    assert "check_kernels: status 1" in said and "from the formula" in said.splitlines()[-1]
    parts = parts_of(out)
    assert list(parts) == ["facts", "check_kernels"] and all(part["ended"] for part in parts.values())
    document = (out / "results.md").read_text()
    assert re.match(r"# Figures of one stand-in, \d{4}-\d\d-\d\d\n\n2 checks, 1 failed.\n", document)
    assert "- check_kernels, --only 11, decode" in document
    assert "## What the figures were measured with" in document and "| torch | " in document
    assert "== facts, 60 s" in (out / "log.txt").read_text()


PROGRAMS = """
import sys, time
sys.path.insert(0, TOOLS)
from results import Results, main
name = sys.argv[1].rsplit("/")[-1].removesuffix(".py")
if name == "results":
    sys.argv[:] = sys.argv[1:]
    sys.exit(main())
from pathlib import Path
results = Results(Path(sys.argv[2]), name, name.title())
results.table("Numbers", ["a", "b"], [(1, 2.5)])
if name == "hangs":
    time.sleep(1000)
if name == "dies":
    sys.exit(7)
results.check("a check", "it is wrong" if name == "wrong" else None)
sys.exit(results.end())
"""


@pytest.mark.parametrize(
    ("names", "failed"),
    [
        ("right", []),
        ("right wrong right2", ["wrong, a check: it is wrong"]),
        ("hangs right", ["hangs: did not come to its end"]),
        ("dies right", ["dies: did not come to its end"]),
    ],
)
def test_parts(tmp_path, names, failed):
    """With programs that need no card, and that hang or die."""
    script = tmp_path / "programs.py"
    script.write_text(PROGRAMS.replace("TOOLS", repr(str(TOOLS))))
    out, python = tmp_path / "out", f"{sys.executable} {script}"
    listed = " ".join(f"{name}:{6 if name == 'hangs' else 60}" for name in names.split())
    status, said = run_all(out, listed, python=python)
    assert status == bool(failed)
    assert said.splitlines()[-len(failed) - 1 :] == [f"{len(failed)} failures; {out}/results.md", *failed]
    parts, document = parts_of(out), (out / "results.md").read_text()
    assert list(parts) == names.split()  # what hung or died is there as far as it came
    assert document.count("### Numbers\n\n| a | b |\n| --- | --- |\n| 1 | 2.5 |\n") == len(parts)
    assert document.count("This part did not come to its end.") == len(set(parts) & {"hangs", "dies"})


def test_no_time_and_no_card(tmp_path):
    script = tmp_path / "programs.py"
    script.write_text(PROGRAMS.replace("TOOLS", repr(str(TOOLS))))
    status, said = run_all(tmp_path / "late", "right:60", python=f"{sys.executable} {script}", TOTAL_S="4")
    assert status == 1 and "right: no time left" in said and said.splitlines()[-1] == "right: did not begin"
    status, said = finished([sys.executable, str(TOOLS / "facts.py"), str(tmp_path)], 100, {"CUDA_VISIBLE_DEVICES": ""})
    assert status == 1 and "no GPU: torch.cuda.is_available() is False" in said


def test_a_limit_counts_the_imports(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text(f"""
import sys, time
time.sleep(0.5)
sys.path.insert(0, {str(TOOLS)!r})
from results import program
def work(results, limit, args):
    results.data("left", limit.left_s)
sys.exit(program("slow", "Slow", work))
""")
    assert finished([sys.executable, str(script), str(tmp_path), "--seconds", "50"], 60, {})[0] == 0
    assert 30 < parts_of(tmp_path)["slow"]["data"]["left"] <= 49.5


@pytest.mark.long
def test_all_of_it(tmp_path):
    """As it runs on a card, but for the card, and in a quarter of the time."""
    usual = re.search(r"\{PARTS:-([^}]+)\}", (TOOLS / "run.sh").read_text())[1]
    listed = [(name, int(seconds)) for name, seconds in (one.split(":") for one in usual.split())]
    assert sum(seconds for _, seconds in listed) <= 570  # what all of it may take
    status, said = run_all(tmp_path, " ".join(f"{name}:{max(30, seconds // 4)}" for name, seconds in listed))
    parts = parts_of(tmp_path)
    assert list(parts) == [name for name, _ in listed]
    assert list(parts) == ["facts", "check_kernels", "bench_kernels", "bench_ranks", "bench_generate", "tune"]
    assert all(part["ended"] for part in parts.values()), said[-3000:]
    failed = [line for line in said.splitlines() if line.startswith("FAILED")]
    slow = "no problem was tried", "did not end"  # what a busy machine does not come to
    assert not [line for line in failed if not any(words in line for words in slow)], failed
    assert status == bool(failed)
    assert len(list(tmp_path.iterdir())) <= 8
