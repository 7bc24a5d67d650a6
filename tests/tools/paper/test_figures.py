"""Figures of the paper on small cases: what their tables say, and pictures that are SVG with nothing left over."""

import re
from xml.etree import ElementTree

import pytest

from tools.paper import __main__ as program
from tools.paper import drawing, lab, latency, llama, memory, ratio, volume
from tools.paper.page import marks, placed
from tools.paper.published import STEPS
from topocomm import TopocommError

SMALL = {
    "latency": lambda: latency.simulate_all((8,), (80_000, 160_000)),
    "ratio": lambda: ratio.simulate_all(8, 80_000),
    "volume": lambda: volume.count_all((8,), 80_000),
    "memory": memory.load,
    "lab": lab.load,
    "llama": lambda: llama.simulate_all((64_000,)),
}
MADE = {}


def made(name):
    if name not in MADE:
        MADE[name] = SMALL[name]()
    return MADE[name]


def test_latency_has_the_fair_methods_between_their_bounds():
    found = made("latency")
    for count, times in found.us.items():
        for method, by_context in times.items():
            assert all(us >= found.own_us[count][context] * (1 - 1e-9) for context, us in by_context.items())
            assert method == "ring" or max(by_context.values()) < times["ring"][80_000] / 10
    lines = latency.table_lines(found)
    hop_us = 6.6 + 2 * 0.3 + 20_000 * 8192 / 450e3
    assert f"| ring (paper) | {7 * hop_us + 20_000 * 8192 / 3350e3:,.1f} |" in lines
    assert lines[-2] == "| 80k | 29 and 42 |"


def test_ratio_says_what_both_must_take_besides():
    found = made("ratio")
    for tree, tree_us in found.tree_us.items():
        common_us = found.common_us(tree)
        assert (found.ring_us + common_us) / (tree_us + common_us) == pytest.approx(8)
        assert found.sequential[tree] > found.base[tree]
        assert found.changed["NVLink rate"][0.5][tree] > found.changed["NVLink rate"][2.0][tree]
        assert found.changed["HBM rate"][0.5][tree] < found.base[tree] < found.changed["HBM rate"][2.0][tree]
        assert found.changed["network latency"][2.0][tree] == pytest.approx(found.base[tree])
    partials_us = found.partials_us  # 7 hops: launch, two links, 16 x 129 float32; then the last merge of two
    hops_us = 7 * (6.6 + 2 * 0.3 + 8256 / 450e3) + 2 * 8256 / 3350e3
    assert partials_us == pytest.approx(10_000 * 8192 / 3350e3 + hops_us, rel=1e-6)
    lines = ratio.table_lines(found)
    assert [line.split(" | ")[0][2:] for line in lines[-8:]] == [*found.changed, ratio.SEQUENTIAL]


def test_volume_of_the_ring_is_its_formula_less_a_hop():
    found = made("volume")
    for count, sent in found.most.items():
        assert sent["ring"] == found.ring_formula[count] * (count - 1) / count
        assert found.total[count]["ring"] == count * sent["ring"]
        assert sent["helix"] == 0  # a key head or two each
    assert found.most[8]["tree"] == 7 * 16 * 129 * 4  # everything to everybody in one round
    assert "| ring (paper) | 573,440,000 |" in "\n".join(volume.table_lines(found))


def test_memory_reads_what_the_bench_prints():
    printed = (
        "2 ranks x 1 threads\nhidden  measured MB  formula MB   ratio\n"
        "  2048 tree             524.3       524.3   1.000\n  2048 ring            1048.7      1048.6   1.000\n"
        "  2048 ring-tree        524.4       524.3   1.000\n"
    )
    assert memory.parse(printed) == ((2048, "tree", 524.3), (2048, "ring", 1048.7))
    with pytest.raises(TopocommError, match="expected rows"):
        memory.parse("nothing")
    for peak in made("memory").peaks:
        assert peak.measured_mb == pytest.approx(memory.formula_mb(peak.method, peak.hidden, 64_000), rel=0.01)


def test_the_lab_reads_what_the_job_prints():
    row = "{:<10}{:>12.1f}{:>12.1f}{:>16,}{:>11.1e}  bits on all ranks"
    lines = [row.format(*own).replace("bits on all ranks", "the same") for own in (
        ("tree", 32730.2, 34504.8, 115_584, 7.2e-7), ("ring", 646715.3, 651148.6, 58_720_256, 4.5e-7),
        ("allreduce", 69384.0, 69563.7, 121_856, 6.3e-7),
    )]  # fmt: skip
    found = lab.parse("\n".join(["method  p50_us", *lines]))
    assert found == {"tree": 32730.2, "ring": 646715.3, "three-allreduce": 69384.0}
    with pytest.raises(TopocommError, match="no row ring"):
        lab.parse("\n".join([lines[0], lines[2]]))


def test_the_ring_on_the_lab_takes_what_its_bytes_take():
    times = made("lab")
    for context, measured_us in times.measured_us["ring"].items():
        moved_us = 7 * (context // 8) * 2 * 16 * 128 * 4 / (lab.MBIT_PER_S * lab.PAYLOAD_SHARE / 8)
        assert times.simulated_us["ring"][context] == pytest.approx(moved_us, rel=0.02)
        assert measured_us > 0.95 * moved_us
        assert times.measured_us["tree"][context] < measured_us


def test_llama_prompts_take_their_operations():
    shape = llama.model_shape("llama-3.1-8b")
    layers = 32 * (4096 * 128 * (32 + 16) + 4096 * 4096 + 3 * 4096 * 14336)
    whole = 2 * 1000 * layers + 2 * 1000**2 * 4096 * 32
    assert llama.prompt_flop(shape, 1000, 1, equal=True) == pytest.approx(whole)
    assert llama.prompt_flop(shape, 1000, 1, equal=False) == pytest.approx(whole)
    parts = [llama.prompt_flop(shape, 1000, 4, equal) for equal in (True, False)]
    assert parts[0] == pytest.approx(whole / 4)
    assert parts[1] - parts[0] == pytest.approx(4 * (7 / 32 - 1 / 8) * 1000**2 * 4096 * 32)  # last of four: 7/16 of 1/2


def test_llama_repeats_heads_in_what_it_sends_alone():
    own = made("llama")["4x MI300X"].replicated_ms[64_000]
    hop_ms = 32 * 3 * 16_000 * 2 * 8 * 128 * 2 / 64e6  # layers, hops, bytes of a rank's part at 64 GB/s
    assert own["ring"] - own["tree"] == pytest.approx(hop_ms, rel=0.05)
    assert own[llama.AS_ITS_PROGRAM] - own["tree"] == pytest.approx(4 * hop_ms, rel=0.05)
    row = next(line for line in llama.table_lines(made("llama")) if line.startswith("| 64k | 2.36"))
    assert f"{own['ring'] * STEPS / 1e3:.3f}" in row


@pytest.mark.parametrize("name", SMALL)
def test_pictures(name):
    pytest.importorskip("matplotlib", reason="pictures are drawn by matplotlib, which tests do not install")
    figure = program.FIGURES[name]
    picture = figure.draw(made(name))
    assert name != "memory" or picture == figure.draw(made(name))
    root = ElementTree.fromstring(picture)
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert figure.title in texts
    assert any(word in figure.title for word in ("simulated", "measured"))
    colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", picture))
    dark = drawing.dark_rules()
    assert colours and all(f"fill: {colour}" in dark and f"stroke: {colour}" in dark for colour in colours)


def test_without_matplotlib_it_says_so_at_once(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    assert program.main(["memory", "--write"]) == 2
    assert "drawing needs matplotlib; `pip install --group paper`" in capsys.readouterr().err


def test_the_program_prints_tables(capsys):
    assert program.main(["memory"]) == 0
    assert "| 2048 | 524.3 |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        program.main(["speed"])
    assert "expected one of latency, ratio" in capsys.readouterr().err


def test_the_page_has_marks_for_every_figure():
    page = program.PAGE.read_text()
    for name in program.FIGURES:
        begin, end = marks(name)
        changed = placed(page, name, ["new"])
        assert f"{begin}\n\nnew\n\n{end}" in changed
        assert placed(changed, name, ["new"]) == changed
        assert (program.PICTURES / f"paper-{name}.svg").exists()
        assert f"../pictures/paper-{name}.svg" in page
    with pytest.raises(TopocommError, match="once each"):
        placed(page, "speed", [])


def test_units():
    assert [drawing.us_text(value) for value in (5, 1e3, 2e6)] == ["5 us", "1 ms", "2 s"]
    assert [drawing.tokens_text(value) for value in (80_000, 5_120_000)] == ["80k", "5.12M"]
    assert [drawing.bytes_text(value) for value in (10, 1e3, 3e8, 1e10, 2e12)] == [
        "10 B",
        "1 kB",
        "300 MB",
        "10 GB",
        "2 TB",
    ]
