"""run.sh: its four calls, all parts in one document, a status that tells, and nothing lost where a part hangs."""

import json
import re
import sys

import pytest

from tests.tools.gpu.running import TOOLS, finished, parts_of, run_all


@pytest.mark.long
def test_a_kernel_that_is_wrong_fails_the_run(tmp_path):
    """The planted fault is in what the decode kernel wrote."""
    plant = tmp_path / "plant.py"
    plant.write_text("""
import sys, attention.gpu.decode.decode as decode
launch = decode._launch
def wrong(ready, arrays, *others):
    launch(ready, arrays, *others)
    arrays[3].view(-1)[0] += 1e-3
decode._launch = wrong
if sys.argv[0].endswith("check_kernels.py"):
    sys.argv += ["--only", "0", "11"]
""")
    out = tmp_path / "out"
    status, said = run_all(out, "facts:60 check_kernels:100", PLANT=str(plant))
    assert status == 1, said
    assert "check_kernels: status 1" in said and "from the formula" in said.splitlines()[-1]
    parts = parts_of(out)
    assert list(parts) == ["facts1", "check_kernels"] and all(part["ended"] for part in parts.values())
    document = (out / "results.md").read_text()
    assert re.match(r"# Figures of one stand-in, \d{4}-\d\d-\d\d\n\n2 checks, 1 failed.\n", document)
    assert "- check_kernels, --only 11, decode" in document
    assert "## What the figures of call 1 were measured with" in document and "| torch | " in document
    assert "== call 1: facts, 60 s" in (out / "log.txt").read_text()


PROGRAMS = """
import os, sys, time
sys.path.insert(0, TOOLS)
from results import Results, main
name = sys.argv[1].rsplit("/")[-1].removesuffix(".py")
if name == "results":
    sys.argv[:] = sys.argv[1:]
    sys.exit(main())
from pathlib import Path
tables = sys.argv[sys.argv.index("--tables") + 1] if "--tables" in sys.argv else ""
part = f"{name} {tables}".strip() if name != "facts" else "facts" + os.environ["RUN_CALL"]
results = Results(Path(sys.argv[2]), part, part.title())
results.table("Numbers", ["a", "b"], [(1, 2.5)])
results.data("tuned in", os.environ.get("TOPOCOMM_TUNED_DIR"))
results.data("seconds", int(sys.argv[sys.argv.index("--seconds") + 1]))
if name == "hangs":
    time.sleep(1000)
if name == "dies":
    sys.exit(7)
if name == "tune":
    for kernel in ("decode", "prefill"):
        Path(sys.argv[2], f"{kernel}_table.json").write_text("{}")
results.check("a check", "it is wrong" if name == "wrong" else None)
sys.exit(results.end())
"""


@pytest.fixture
def programs(tmp_path):
    """A Python in which every program of run.sh is one that needs no card."""
    script = tmp_path / "programs.py"
    script.write_text(PROGRAMS.replace("TOOLS", repr(str(TOOLS))))
    return f"{sys.executable} {script}"


@pytest.mark.parametrize(
    ("names", "failed"),
    [
        ("right", []),
        ("right wrong right2", ["wrong, a check: it is wrong"]),
        pytest.param("hangs right", ["hangs: did not come to its end"], marks=pytest.mark.long),
        pytest.param("dies right", ["dies: did not come to its end"], marks=pytest.mark.long),
    ],
)
def test_parts(tmp_path, programs, names, failed):
    """With programs that hang or die."""
    out = tmp_path / "out"
    listed = " ".join(f"{name}:{6 if name == 'hangs' else 60}" for name in names.split())
    status, said = run_all(out, listed, python=programs)
    assert status == bool(failed)
    assert said.splitlines()[-len(failed) - 1 :] == [f"{len(failed)} failures; {out}/results.md", *failed]
    parts, document = parts_of(out), (out / "results.md").read_text()
    assert list(parts) == names.split()  # what hung or died is there as far as it came
    assert document.count("### Numbers\n\n| a | b |\n| --- | --- |\n| 1 | 2.5 |\n") == len(parts)
    assert document.count("This part did not come to its end.") == len(set(parts) & {"hangs", "dies"})


CALLS = {
    "1": ["facts1", "check_kernels"],
    "2": ["facts2", "bench_kernels rules", "tune", "bench_kernels tuned"],
    "3": ["facts3", "bench_ranks"],
    "4": ["facts4", "check_kernels tuned", "bench_generate"],
}


@pytest.mark.long
def test_four_calls_one_by_one(tmp_path, programs):
    """Each has a file of results and less than ten minutes; ranks and generation take what was tuned, checks do not."""
    out, names = tmp_path / "out", ("correctness", "2", "ranks", "4")
    for call, name in zip(CALLS, names, strict=True):
        status, said = run_all(out, "", call=name, python=programs)
        assert status == 0, said
        assert list(json.loads((out / f"results-{call}.json").read_text())) == CALLS[call]
    parts = parts_of(out)
    assert all(sum(int(parts[name]["data"]["seconds"]) for name in names) < 500 for names in CALLS.values())
    for name, part in parts.items():
        own = name in (*CALLS["3"], *CALLS["4"])
        assert part["data"]["tuned in"] == (str(out) if own else None), name
    assert (out / "results.md").read_text().count("### Numbers") == len(parts)
    assert (out / "log.txt").read_text().count("== call ") == len(parts)
    assert len(list(out.iterdir())) <= 8  # as many as such a machine gives back


@pytest.mark.long
def test_what_earlier_calls_left_is_carried_over(tmp_path, programs):
    """Another machine begins with nothing."""
    earlier, out = tmp_path / "earlier", tmp_path / "out"
    assert run_all(earlier, "", call="2", python=programs)[0] == 0
    status, said = run_all(out, "", call="4", python=programs, EARLIER=str(earlier))
    assert status == 0, said
    assert parts_of(out)["bench_generate"]["data"]["tuned in"] == str(out)
    assert "## Bench_Kernels Tuned" in (out / "results.md").read_text()


@pytest.mark.long
def test_a_call_that_is_made_again_replaces_its_results_alone(tmp_path, programs):
    out = tmp_path / "out"
    assert run_all(out, "wrong:60", call="1", python=programs)[0] == 1
    status, said = run_all(out, "right:60", call="2", python=programs)
    assert status == 0 and said.splitlines()[-1].startswith("0 failures")  # of its own parts
    assert "- wrong, a check: it is wrong" in (out / "results.md").read_text()
    assert run_all(out, "right2:60", call="1", python=programs)[0] == 0
    assert list(parts_of(out)) == ["right2", "right"]


@pytest.mark.parametrize(
    ("words", "said"), [([], "usage: tools/gpu/run.sh OUT"), (["out", "5"], "CALL=5: expected 1, 2")]
)
def test_wrong_arguments(tmp_path, words, said):
    status, printed = finished(
        ["bash", str(TOOLS / "run.sh"), *(str(tmp_path / x) if x == "out" else x for x in words)], 60, {}
    )
    assert status != 0 and said in printed and not list(tmp_path.iterdir())


@pytest.mark.long
def test_no_time_and_no_card(tmp_path, programs):
    status, said = run_all(tmp_path / "late", "right:60", python=programs, TOTAL_S="4")
    assert status == 1 and "right: no time left" in said and said.splitlines()[-1] == "right: did not begin"
    status, said = finished([sys.executable, str(TOOLS / "facts.py"), str(tmp_path)], 100, {"CUDA_VISIBLE_DEVICES": ""})
    assert status == 1 and "no GPU: torch.cuda.is_available() is False" in said


@pytest.mark.long
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
    status, said = finished([sys.executable, str(script), str(tmp_path), "--tables", "tuned"], 60, {})
    assert status == 0 and "No table of tuned configurations is in" in said
    assert parts_of(tmp_path)["slow tuned"]["data"] == {}


@pytest.mark.long
@pytest.mark.parametrize("call", CALLS)
def test_all_of_it(tmp_path, call):
    """As it runs on a card, but for the card, and in a tenth of the time."""
    usual = re.search(rf'\[{call}\]="([^"]+)"', (TOOLS / "run.sh").read_text())[1]
    listed = [one.split(":") for one in usual.split()]
    assert sum(int(one[1]) for one in listed) <= 550  # of the ten minutes
    short = " ".join(":".join([one[0], str(max(30, int(one[1]) // 10)), *one[2:]]) for one in listed)
    status, said = run_all(tmp_path, short, call=call)
    failed = [line for line in said.splitlines() if line.startswith("FAILED")]
    slow = "no problem was tried", "did not end"  # what a busy machine does not come to
    assert not [line for line in failed if not any(words in line for words in slow)], failed
    parts = json.loads((tmp_path / f"results-{call}.json").read_text())
    assert list(parts) == CALLS[call] and all(part["ended"] for part in parts.values()), said[-3000:]
    assert status == bool(failed) and len(list(tmp_path.iterdir())) <= 5  # and three files of the other calls
