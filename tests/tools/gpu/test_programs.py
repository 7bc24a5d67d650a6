"""The programs that time, whole, on a stand-in for the card: their tables, and what they say of what is missing."""

import json
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch

from tests.tools.gpu.running import PYTHON, Nothing, number, table, wrong
from topocomm import run_local

pytestmark = pytest.mark.filterwarnings("ignore")  # the interpreter computes with NumPy
UNMEASURED = "not yet measured"
MEDIAN = "us: median (quartiles)"


@pytest.fixture
def one_problem(tools, monkeypatch):
    """Of decoding and of prefill the first."""
    for name in ("decode_shapes", "prefill_shapes"):
        made = getattr(tools.bench_problems, name)
        monkeypatch.setattr(tools.bench_kernels, name, lambda card, made=made: list(made(card))[:1])


def test_kernels_beside_ceilings_and_others(part):
    found, status = part("bench_kernels")
    assert status == 0, wrong(found)
    rows = {row["way"]: row for row in table(found, "Decode, bf16, 2/1 heads x 16, batch 1, 48 tokens")}
    assert list(rows)[:2] == ["ours", "ours, graph"]
    assert {"SDPA flash", "read (Triton)", "read (torch.sum)", "copy"} < set(rows)
    assert all(number(row[MEDIAN]) > 0 for row in rows.values())
    note = next(b["text"] for b in found["blocks"] if b.get("title", "").startswith("Decode, bf16, 2/1"))
    assert note.startswith("6 sets of 0.00 MB of keys and values in turns.")  # 3,072 bytes each, 16 KiB in all
    assert "Not there: flash_attn (No module named 'flash_attn')." in note
    assert {row["way"] for row in table(found, "Merge of 3 partials")} >= {"merge_states, graph"}
    for title in ("Decode, bf16, MLA", "Decode, fp8", "Prefill, bf16, 2/1 heads x 16, 20 tokens, causal"):
        assert number(table(found, title)[0][MEDIAN]) > 0
    goals = table(found, "What was to be reached")
    assert {row["target"] for row in goals} == {"< 4 us", ">= 80% of read", ">= 1.0 x the fastest", "-"}
    assert {row["met"] for row in goals} == {UNMEASURED, "-"}  # an interpreter's times reach nothing


def test_a_kernel_that_fails_stops_no_other_table(tools, part, monkeypatch, one_problem):
    plain = tools.bench_problems.decode_partial

    def wrong_values(q, k, v, **more):
        made = plain(q, k, v, **more)
        made.out.add_(10)
        return made

    monkeypatch.setattr(tools.bench_problems, "decode_partial", wrong_values)
    monkeypatch.setattr(tools.bench_kernels, "merges", lambda card: 1 / 0)
    found, status = part("bench_kernels")
    assert status == 1
    first, second = wrong(found)
    assert first == "merge: ZeroDivisionError: division by zero"
    assert "batch 1, 48 tokens: ValueError: no library agrees with ours" in second
    assert table(found, "Prefill")


def test_without_time_what_is_left_is_named(part, one_problem):
    found, status = part("bench_kernels", seconds=0.0)
    assert status == 0
    left = next(block["text"] for block in found["blocks"] if block["text"].startswith("No time was left for: "))
    assert left == (
        "No time was left for: Decode, bf16, 2/1 heads x 16, batch 1, 48 tokens; "
        "Prefill, bf16, 2/1 heads x 16, 20 tokens, causal: not yet measured."
    )


def test_goals(tools):
    """What counts as reached, from times that are known."""

    class Gpu(type(tools.card)):
        interpreted = False

    times = {"ours": 10.0, "SDPA flash": 9.0, "FlashInfer": 25.0, "copy": 1.0}
    times = {name: tools.turns.Times([us]) for name, us in times.items()}
    shape = next(iter(tools.bench_problems.decode_shapes(tools.card)))
    assert tools.bench_kernels._beside_rivals(Gpu(), shape, times)[0][2:] == ("0.90 x SDPA flash", "no")
    times["ours"] = tools.turns.Times([8.0, 9.0, 9.0])
    assert tools.bench_kernels._beside_rivals(Gpu(), shape, times)[0][2:] == ("1.00 x SDPA flash", "yes")
    told = {"ranks": 2, "batch": 1, "bytes": 8, "raw": None, "wrong": [], "eager": {"topocomm: x": [1.0]}}
    told["graph"] = {"topocomm: x": [2.0], tools.bench_ranks.THREE: [5.0]}
    results = Nothing()
    assert tools.bench_ranks._table(results, Gpu(), told)[0][2:] == ("2.50 x", "no")
    told["graph"]["topocomm: x"] = [1.0]
    assert tools.bench_ranks._table(results, Gpu(), told)[0][2:] == ("5.00 x", "yes")


def test_ranks_on_one_card(part, monkeypatch):
    monkeypatch.setenv("PYTHON", PYTHON)
    found, status = part("bench_ranks")
    assert status == 0, wrong(found)
    rows = {row["way"]: row for row in table(found, "2 ranks, 1 x 2 heads x 16 float32, 136 bytes a rank")}
    ours = next(name for name in rows if name.startswith("topocomm: "))
    assert set(rows) == {ours, "all-gather + merge", "3 all-reduces + rescale", "3 all-reduces alone"}
    assert all(number(row["eager"]) > 0 and number(row["in a graph"]) > 0 for row in rows.values())
    assert "One GPU, no link was crossed." in json.dumps(found["blocks"])
    goal = table(found, "What was to be reached")[0]
    assert goal["target"] == ">= 3 x 3 all-reduces + rescale" and goal["met"] == UNMEASURED


def told_by_ranks(tools, capsys):
    """The last word of ranks on threads of this process."""
    capsys.readouterr()
    with np.errstate(all="ignore"):
        run_local(lambda comm: tools.rank_worker.rank_job(comm, tools.card, tools.turns.Limit(100)), ranks=2)
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    ("name", "way", "words"),
    [
        ("three_allreduces", lambda *a, **k: (lambda: None, lambda: a[1]), "3 all-reduces + rescale: "),
        ("ours", lambda comm, x: {"topocomm: x": (lambda: None, lambda: x)}, "topocomm: x: other bits than ranks"),
        (
            "ours",
            lambda comm, x: {"topocomm: x": (lambda: x.out.add_(1), lambda: x)},
            "topocomm: x: a second call gives other bits",
        ),
    ],
)
def test_ranks_that_are_wrong(tools, monkeypatch, capsys, name, way, words):
    monkeypatch.setattr(tools.rank_worker, name, way)
    monkeypatch.setattr(type(tools.card), "graph", lambda self, run, stream=None: 1 / 0)
    told = told_by_ranks(tools, capsys)
    assert any(one.startswith(words) for one in told["wrong"]), told["wrong"]
    assert told["graph"] == {} and all("division by zero" in one for one in told["graph wrong"])


def test_without_nccl_ours_is_measured_alone(tools, monkeypatch, capsys, part):
    def library(self, comm):
        if comm.rank == 1:
            raise RuntimeError("NCCL 2.28.9 takes one rank a GPU")
        return object()

    monkeypatch.setattr(type(tools.card), "library", library)
    told = told_by_ranks(tools, capsys)
    assert len(told["eager"]) == 1 and not told["wrong"]
    monkeypatch.setattr(
        tools.bench_ranks.subprocess,
        "run",
        lambda *_, **__: subprocess.CompletedProcess([], 0, json.dumps({**told, "raw": "NCCL is 2.28.9"}) + "\n"),
    )
    found, status = part("bench_ranks")
    assert status == 0
    assert "NCCL alone was not measured: NCCL is 2.28.9." in json.dumps(found["blocks"])
    assert table(found, "What was to be reached")[0]["reached"] == UNMEASURED


def test_ranks_that_hang_leave_what_they_had(tools, part, monkeypatch):
    told = {"ranks": 2, "batch": 1, "bytes": 8, "raw": None, "wrong": [], "eager": {"topocomm: x": [1.0, 2.0, 3.0]}}

    def hang(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout, output=(json.dumps(told) + "\n").encode())

    monkeypatch.setattr(tools.bench_ranks.subprocess, "run", hang)
    found, status = part("bench_ranks", seconds=50.0)
    assert status == 1 and wrong(found) == ["2 ranks: did not end within 50 s"]
    assert table(found, "2 ranks")[0] == {"way": "topocomm: x", "eager": "2.00 (1.50 to 2.50)", "in a graph": "-"}


def test_generation(part):
    found, status = part("bench_generate")
    assert status == 0, wrong(found)
    rows = {row["way"]: row for row in table(found, "Plain torch model, bf16, batch 1")}
    assert list(rows) == ["torch SDPA", "torch SDPA, graph", "ours", "ours, graph"]
    assert all(number(row["new tokens/s"]) > 0 for row in rows.values())


def test_other_tokens_are_found(tools, part, monkeypatch):
    plain = tools.small_model.decode_partial

    def turned(q, k, v, **more):
        made = plain(q, k, v, **more)
        made.out.zero_()
        return made

    monkeypatch.setattr(tools.small_model, "decode_partial", turned)
    monkeypatch.setattr(tools.bench_generate, "_by_transformers", lambda *_: None)
    monkeypatch.setattr(tools.bench_generate, "_timed", lambda *_: None)
    found, status = part("bench_generate")
    assert status == 1
    assert wrong(found) == ["greedy tokens in float32: ours, graph differs from token 1 on"]


def _empty(folder):
    folder.mkdir()
    return folder


@pytest.mark.parametrize("form", ["library", "wheel", "parts"])
def test_an_nccl_that_was_brought_along(tools, tmp_path, form):
    folder, scratch = tmp_path / "carried", tmp_path / "scratch"
    library = folder / "nvidia/nccl/lib/libnccl.so.2"
    library.parent.mkdir(parents=True)
    scratch.mkdir()
    library.write_bytes(bytes(range(256)) * 100)
    if form != "library":
        wheel = folder / "nvidia_nccl_cu13-2.30.7-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(library, "nvidia/nccl/lib/libnccl.so.2")
        shutil.rmtree(folder / "nvidia")
    if form == "parts":
        whole = wheel.read_bytes()
        for place, name in enumerate(("aa", "ab", "ac")):
            (folder / f"nccl.whl.{name}").write_bytes(whole[place * 10_000 : (place + 1) * 10_000])
        wheel.unlink()
    find = tools.carried_nccl.library_in
    assert find(folder, scratch).read_bytes() == bytes(range(256)) * 100
    with pytest.raises(FileNotFoundError, match=r"expected libnccl.so.2, or a wheel \*.whl, or its parts"):
        find(_empty(tmp_path / "none"), scratch)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        find(tmp_path / "nowhere", scratch)


def test_turns(tools, monkeypatch):
    """Every way as often, in changing order; fewer rounds where the time is over, but three."""
    ran, card = [], tools.card
    monkeypatch.setattr(type(card), "sizes", card.sizes._replace(rounds=9, block_us=0.0))
    ways = {name: tools.turns.Way(lambda name=name: ran.append(name), 2) for name in "abc"}
    times = tools.turns.in_turns(card, ways, tools.turns.Limit(60))
    assert all(len(one.us) == 9 for one in times.values())
    rounds = ["".join(ran[-27:][i : i + 3]) for i in range(0, 27, 3)]
    assert all(sorted(one) == list("abc") for one in rounds) and len(set(rounds)) > 2
    assert all(len(one.us) == 3 for one in tools.turns.in_turns(card, ways, tools.turns.Limit(0)).values())
    assert str(tools.turns.Times([1.0, 2.0, 3.0, 4.0, 1005.0])) == "3.00 (2.00 to 4.00)"


class _Watched:
    """A kernel whose second argument is kept."""

    def __init__(self, kernel, found):
        self.kernel, self.found = kernel, found

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            self.found.append(arguments[1])
            return self.kernel[grid](*arguments, **options)

        return launch


def test_ceilings(tools, monkeypatch):
    """The reader reads all of it: each word counts."""
    ceilings = sys.modules["ceilings"]
    words, found = torch.arange(10_000, dtype=torch.int32), []
    monkeypatch.setattr(ceilings, "read_kernel", _Watched(ceilings.read_kernel, found))
    ceilings.reader(tools.card, [words], steps=2)()
    assert found[0].tolist() == [int((words[:4096] ^ words[4096:8192]).sum()), int(words[8192:].sum())]
    with pytest.raises(ValueError, match="only dense buffers"):
        ceilings.reader(tools.card, [words.view(100, 100).T])
