from topocomm.topology.draw.measured import render
from topocomm.topology.model import Device, Pair, Topology

FACTS = {"ranks": 2, "transport": "threads", "latency_bytes": 8, "bandwidth_bytes": 4 << 20}
GPUS = (Device("GPU0", "gpu"), Device("GPU1", "gpu"))


def test_figures_stand_beside_nominal_ones_with_their_quotient():
    pair = {
        "a": "GPU1",
        "b": "GPU0",
        "latency_us": 3.0,
        "nominal_latency_us": 1.5,
        "nominal_latency_us_source": "assumed",
    }
    pair |= {"gb_per_s": 20.0, "nominal_gb_per_s": 25.0, "nominal_gb_per_s_source": "table"}
    topology = Topology(
        "x", "x", GPUS, (), (Pair("GPU0", "GPU1", "NV1"),), facts={"ping_pong": {**FACTS, "pairs": [pair]}}
    )
    head, _, title, line = render(topology).splitlines()
    assert head == "Measured between 2 ranks by threads, one pair at a time: 8 B and 4 MiB, one way"
    assert title.split() == ["pair", "code", "us", "nominal", "x", "GB/s", "nominal", "x"]
    assert line.split() == ["GPU1", "-", "GPU0", "NV1", "3", "(1.5)", "2.00", "20", "25", "0.80"]


def test_what_is_not_known_is_a_question_mark():
    pair = {
        "a": "GPU0",
        "b": "GPU1",
        "latency_us": 3.0,
        "nominal_latency_us": None,
        "gb_per_s": 20.0,
        "nominal_gb_per_s": None,
    }
    topology = Topology("x", "x", GPUS, (), facts={"ping_pong": {**FACTS, "pairs": [pair]}})
    assert render(topology).splitlines()[-1].split() == ["GPU0", "-", "GPU1", "?", "3", "?", "20", "?"]


def test_ranks_on_one_device_have_no_pair():
    text = render(Topology("x", "x", GPUS, (), facts={"ping_pong": {**FACTS, "pairs": []}}))
    assert text.endswith("\n2 ranks share one device: no link lies between them\n")
