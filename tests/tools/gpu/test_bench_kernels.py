"""bench_kernels.py on a stand-in for the card: its tables, its goals, and what it does where something is missing."""

import sys

import numpy as np
import pytest
import torch

from tests.tools.gpu.running import Nothing, number, table, wrong

pytestmark = pytest.mark.filterwarnings("ignore")  # the interpreter computes with NumPy
UNMEASURED = "not yet measured"
MEDIAN = "us: median (quartiles)"


@pytest.fixture
def one_problem(tools, monkeypatch):
    """Of decoding and of prefill the first."""
    monkeypatch.setattr(tools.bench_kernels, "shapes", lambda card: tools.bench_problems.shapes(card)[:2])


@pytest.mark.long
def test_kernels_beside_ceilings_and_others(part):
    found, status = part("bench_kernels")
    assert status == 0, wrong(found)
    rows = {row["way"]: row for row in table(found, "Decode, bf16, 2/1 heads x 16, batch 1, 48 tokens")}
    assert list(rows)[:2] == ["ours", "ours, graph"]
    assert {"SDPA flash", "SDPA flash, graph", "read (Triton)", "read (torch.sum)", "copy"} < set(rows)
    assert all(number(row[MEDIAN]) > 0 for row in rows.values())
    note = next(b["text"] for b in found["blocks"] if b.get("title", "").startswith("Decode, bf16, 2/1"))
    assert note.startswith("6 sets of 0.00 MB of keys and values in turns.")  # 3,072 bytes each, 16 KiB in all
    assert "Not there: flash_attn (No module named 'flash_attn')." in note
    assert {row["way"] for row in table(found, "Merge of 3 partials")} >= {"merge_states, graph"}
    cut = table(found, "Decode, lengths on the card, in graphs")
    assert [row["keys"] for row in cut] == [
        "8 x 6 keys, equal parts",
        "8 x 6 keys, ranges",
        "1 x 48 and 7 x 1 keys, ranges",
    ]
    assert all(number(row[MEDIAN]) > 0 for row in cut)
    product = table(found, "Prefill, bf16, 2/1 heads x 16, 20 tokens, causal")[-1]
    assert (product["way"], product["/ ours"]) == ("matrix product", "-")  # another problem
    for title in (
        "Decode, bf16, MLA",
        "Decode, bf16, 2/2",
        "Decode, fp8",
        "Prefill, bf16, 2/1 heads x 16, 20 tokens, causal",
    ):
        assert number(table(found, title)[0][MEDIAN]) > 0
    goals = table(found, "What was to be reached")
    assert {row["target"] for row in goals} == {"< 4 us", ">= 80% of read", ">= 1.0 x the fastest", "-"}
    assert {row["met"] for row in goals} == {UNMEASURED, "-"}  # an interpreter's times reach nothing


@pytest.mark.long
def test_kernels_are_compiled_by_several_processes_first(tools, part, monkeypatch, one_problem):
    """Prompts and all kinds of decoding; what fails there is met again where it is timed."""
    begun, worker = [], tools.warm_worker
    listed = worker.problems(tools.card)
    assert {shape.name.split(",")[0] for shape in listed} == {"Decode", "Prefill"} and len(listed) == 6

    def shared_out(script, workers, limit):
        begun.append((script, workers, limit.left_s < 60))
        return iter([[0, None], [1, "OutOfResources: too much"]])

    monkeypatch.setattr(tools.bench_kernels, "shared_out", shared_out)
    _, status = part("bench_kernels", workers=3)
    assert status == 0 and begun == [("warm_worker.py", 3, True)]
    ran = []
    monkeypatch.setattr(tools.bench_problems.Shape, "result", lambda self, one: ran.append(self) or 1 / len(ran[1:]))
    assert [worker.compiled(tools.card, number) for number in (0, 1, 6)] == [
        ["ZeroDivisionError: division by zero"],
        [None],
        None,
    ]
    assert ran == listed[:2]


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


def test_decoding_by_flash_attn_3_splits_keys(tools, monkeypatch):
    """Its plain function does not, and would be an easy rival."""
    rivals, called = sys.modules["problems.rivals"], []

    class Library:
        def __getattr__(self, name):
            return lambda q, k, v, **_: called.append((name, list(q.shape), list(k.shape))) or (q, None)

    monkeypatch.setattr(rivals, "import_module", lambda name: Library())
    for q_len in (1, 5):
        q, k = torch.ones(2, 4, q_len, 8), torch.ones(2, 2, 5, 8)
        assert rivals.RIVALS["flash_attn 3"](q, k, k, False).shape == q.shape
    assert called == [
        ("flash_attn_with_kvcache", [2, 1, 4, 8], [2, 5, 2, 8]),
        ("flash_attn_func", [2, 5, 4, 8], [2, 5, 2, 8]),
    ]


class Large:
    """A card of full size that allocates nothing."""

    sizes, interpreted = None, False

    def __init__(self, tools, free_bytes):
        self.sizes, self.free = sys.modules["card"].Sizes(), free_bytes

    def free_bytes(self):
        return self.free


@pytest.mark.parametrize(("free_gib", "left_out"), [(78, 1), (139, 0)])
def test_what_fits_a_card(tools, monkeypatch, free_gib, left_out):
    """Memory of an H100 and of an H200: what all sets of a problem take stays within it; what does not fit is named."""
    card, refused = Large(tools, free_gib << 30), []
    monkeypatch.setattr(tools.bench_problems.Shape, "one_set", lambda self, card, seed: seed)
    listed = tools.bench_problems.shapes(card)
    for shape in listed:
        try:
            count = len(shape.sets(card))
        except tools.bench_problems.TooLarge as error:
            refused.append((shape.name, str(error)))
            continue
        assert count * shape.set_bytes + (shape.needed_bytes - shape.set_bytes) <= 0.9 * card.free
        assert shape.causal is not None or count * shape.set_bytes >= min(1 << 30, 32 * shape.set_bytes)
    assert len(refused) == left_out
    assert all(name == "Decode, bf16, 32/32 heads x 128, batch 8, 524,288 tokens" for name, _ in refused)
    assert all(words == "needs 103.1 GB, this card has 75.4 GB for it" for _, words in refused)
    names = [shape.name for shape in listed]
    assert names[:3] == [
        "Decode, bf16, 32/8 heads x 128, batch 1, 65,536 tokens",
        "Decode, bf16, 32/8 heads x 128, batch 8, 65,536 tokens",
        "Prefill, bf16, 32/8 heads x 128, 4,096 tokens, causal",
    ]
    assert len(set(names)) == len(names)
    for kind in ("bf16, 32/8 heads", "bf16, 32/32 heads", "bf16, MLA 128/1 heads"):
        for n in ("8,192", "65,536", "524,288"):
            assert sum(name.startswith(f"Decode, {kind}") and name.endswith(f" {n} tokens") for name in names) == 2


def test_what_does_not_fit_is_named(tools, part, monkeypatch, one_problem):
    monkeypatch.setattr(tools.bench_problems, "MEMORY_SHARE", 1e-4)
    found, status = part("bench_kernels")
    assert status == 0 and not wrong(found)
    notes = [block["text"] for block in found["blocks"] if "GB, this card has" in block["text"]]
    assert notes[0].startswith("Decode, bf16, 2/1 heads x 16, batch 1, 48 tokens: needs 0.0 GB, this card has 0.0 GB")
    assert notes[0].endswith(f": {UNMEASURED}.") and len(notes) == 2


@pytest.mark.parametrize("lost_by", ["SDPA flash", "ours"])
def test_a_card_that_is_lost_ends_nothing_but_its_problem(tools, part, monkeypatch, one_problem, lost_by):
    """An illegal access ends all that a process may do: another goes on, without the library that made it."""
    lost, begun = [], []

    def breaks(*_, **__):
        lost.append(True)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def again(file, words):
        begun.append(words)
        lost.clear()
        raise SystemExit(0)

    if lost_by == "ours":
        monkeypatch.setattr(tools.bench_problems, "decode_partial", breaks)
    else:
        monkeypatch.setattr(tools.bench_kernels, "RIVALS", {"SDPA flash": breaks})
    monkeypatch.setattr(type(tools.card), "answers", lambda self: not lost)
    monkeypatch.setattr(tools.bench_kernels.os, "execvp", again)
    monkeypatch.setattr(tools.bench_kernels, "merges", lambda card: 1 / 0)
    with pytest.raises(SystemExit):
        part("bench_kernels", tables="rules")
    (words,) = begun
    given = " ".join(words[words.index("--goes-on") :])
    assert (
        given
        == {
            "SDPA flash": "--goes-on --first 0 --without=SDPA flash --tables rules",
            "ours": "--goes-on --first 1 --tables rules",
        }[lost_by]
    )
    assert words[1].endswith("bench_kernels.py") and float(words[words.index("--seconds") + 1]) > 100
    found, _ = part("bench_kernels", first=1, without=["SDPA flash"], goes_on=True)
    assert [block["title"] for block in found["blocks"] if "Prefill" in block.get("title", "")]


def test_goals(tools):
    """What counts as reached, from times that are known."""

    class Gpu(type(tools.card)):
        interpreted = False

    times = {"ours": 30.0, "ours, graph": 10.0, "SDPA flash": 15.0, "SDPA flash, graph": 9.0, "FlashInfer": 12.0}
    times = {name: tools.turns.Times([us]) for name, us in {**times, "copy": 1.0}.items()}
    problems = tools.bench_problems
    shape, prompt = problems.decode_shapes(tools.card, 48)[0], problems.prefill_shapes(tools.card)[0]
    beside = tools.bench_kernels._beside_rivals
    assert beside(Gpu(), shape, times)[0][2:4] == ("0.90 x SDPA flash (in graphs; eager 0.40 x FlashInfer)", "no")
    assert beside(Gpu(), prompt, times)[0][1:4] == ("-", "0.40 x FlashInfer", "-")
    times["ours, graph"] = tools.turns.Times([8.0, 9.0, 9.0])
    assert beside(Gpu(), shape, times)[0][2:4] == ("1.00 x SDPA flash (in graphs; eager 0.40 x FlashInfer)", "yes")
    times["FlashInfer"] = tools.turns.Times([6.0])
    said = "0.67 x FlashInfer (ours in a graph, it in none; eager 0.20 x FlashInfer)"
    assert beside(Gpu(), shape, times)[0][2:4] == (said, "no")
    told = {"ranks": 2, "batch": 1, "bytes": 8, "raw": None, "wrong": [], "eager": {"topocomm: x": [1.0]}}
    told["graph"] = {"topocomm: x": [2.0], tools.bench_ranks.THREE: [5.0]}
    results = Nothing()
    assert tools.bench_ranks._table(results, Gpu(), told)[0][2:4] == ("2.50 x", "no")
    told["graph"]["topocomm: x"] = [1.0]
    assert tools.bench_ranks._table(results, Gpu(), told)[0][2:4] == ("5.00 x", "yes")


@pytest.mark.long
@pytest.mark.parametrize("words", ["CUDA error: operation not permitted when stream is capturing", ""])
def test_others_in_graphs(tools, part, monkeypatch, one_problem, words):
    """One that no graph holds is timed without, and the table says why."""
    plain = tools.bench_kernels.RIVALS["SDPA flash"]
    recording, made = [False], type(tools.card).graph

    def attend(*arguments):
        if recording[0] and words:
            raise RuntimeError(words)
        return plain(*arguments)

    def graph(self, run, stream=None):
        recording[0] = True
        try:
            run()
        finally:
            recording[0] = False
        return made(self, run, stream)

    monkeypatch.setattr(tools.bench_kernels, "RIVALS", {"SDPA flash": attend})
    monkeypatch.setattr(type(tools.card), "graph", graph)
    found, status = part("bench_kernels")
    assert status == 0, wrong(found)
    ways = [row["way"] for row in table(found, "Decode, bf16, 2/1")]
    assert "SDPA flash" in ways and ("SDPA flash, graph" in ways) != bool(words)
    note = next(b["text"] for b in found["blocks"] if b.get("title", "").startswith("Decode, bf16, 2/1"))
    assert (f"Not there: SDPA flash, graph ({words[:60]}" in note) == bool(words)
    assert "SDPA flash, graph" not in [row["way"] for row in table(found, "Prefill")]


def test_no_other_copies_keys(tools, monkeypatch):
    """It would be timed with what it does not need."""
    rivals, seen = sys.modules["problems.rivals"], []

    def attention(q, k, v, **_):
        seen.append((k, v))
        return q[..., : v.shape[3]].clone()

    monkeypatch.setattr(rivals, "scaled_dot_product_attention", attention)
    for q_len in (1, 5):
        q, k, v = torch.ones(1, 4, q_len, 8), torch.ones(1, 2, 5, 8), torch.ones(1, 2, 5, 8)
        for name, attend in rivals.RIVALS.items():
            if name.startswith("SDPA") and (q_len == 1 or "rows" not in name):
                attend(q, k, v, q_len > 1)
                assert all(a.data_ptr() == b.data_ptr() for a, b in zip(seen.pop(), (k, v), strict=True))


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
    ceilings = sys.modules["problems.ceilings"]
    words, found = torch.arange(10_000, dtype=torch.int32), []
    monkeypatch.setattr(ceilings, "read_kernel", _Watched(ceilings.read_kernel, found))
    ceilings.reader(tools.card, [words], steps=2)()
    assert found[0].tolist() == [np.bitwise_xor.reduce(part.numpy()) for part in (words[:8192], words[8192:])]
    with pytest.raises(ValueError, match="only dense buffers"):
        ceilings.reader(tools.card, [words.view(100, 100).T])
