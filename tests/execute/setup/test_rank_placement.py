from types import SimpleNamespace

import pytest

from topocomm.execute.setup.rank_placement import Claim, nearest_nics, own_claim, place_ranks_of_host, spread
from topocomm.topology.links import both_ways
from topocomm.topology.model import Device, Pair, Topology

UUIDS = {f"GPU{i}": f"GPU-{i}{i}{i}{i}aaaa-0000" for i in range(4)}


def gpus(count=4, **others):
    devices = [Device(f"GPU{i}", "gpu", "node", numa=i // 2, bus_id=f"0000:{i + 1:02x}:00.0") for i in range(count)]
    devices += [Device(f"mlx5_{i}", "nic", "node", f"mlx5_{i}", numa=i) for i in range(2)]
    pairs = [Pair(f"GPU{i}", f"mlx5_{j}", "PIX" if i // 2 == j else "SYS") for i in range(count) for j in range(2)]
    return Topology("node", "test", tuple(devices), (), tuple(pairs), **{"facts": {"uuids": UUIDS}, **others})


def cores(*affinity):
    devices = [Device(f"cpu{i}", "cpu", "node", numa=i // 2, cpu_affinity=text) for i, text in enumerate(affinity)]
    return Topology("node", "test", tuple(devices), ())


def devices(host, *claims):
    return place_ranks_of_host(host, claims).devices


def test_without_a_word_ranks_are_spread_in_order():
    assert devices(gpus(), Claim(), Claim()) == ("GPU0", "GPU1")
    assert devices(gpus(2), *[Claim()] * 4) == ("GPU0", "GPU0", "GPU1", "GPU1")


def test_local_ranks_decide_where_they_are_all_different():
    claims = [Claim(local_rank=2), Claim(local_rank=0), Claim(local_rank=1)]
    assert devices(gpus(), *claims) == ("GPU2", "GPU0", "GPU1")
    assert devices(gpus(), Claim(local_rank=2), Claim(local_rank=3)) == ("GPU2", "GPU3")  # half of a job's ranks
    assert devices(gpus(2), *[Claim(local_rank=i) for i in range(4)]) == ("GPU0", "GPU0", "GPU1", "GPU1")
    wrong = [Claim(local_rank=0), Claim(local_rank=0), Claim(local_rank=1)]
    assert devices(gpus(), *wrong) == ("GPU0", "GPU1", "GPU2")
    assert devices(gpus(), Claim(local_rank=1), Claim()) == ("GPU0", "GPU1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2,3", ("GPU2", "GPU3")),
        ("3, 1", ("GPU3", "GPU1")),
        ("GPU-2222,GPU-0000aaaa-0000", ("GPU2", "GPU0")),
        ("gpu-1111AAAA,0", ("GPU1", "GPU0")),
        ("1,7,0", ("GPU1", "GPU1")),  # the list ends at the first that is none
        ("1,-1,0", ("GPU1", "GPU1")),
        ("0,0", ("GPU0", "GPU0")),
    ],
)
def test_two_ranks_that_see_a_list(text, found):
    assert devices(gpus(), *[Claim(visible=(text,))] * 2) == found


def test_every_rank_has_its_own_list():
    claims = [Claim(visible=(f"{i}",)) for i in (3, 2, 1, 0)]
    assert devices(gpus(), *claims) == ("GPU3", "GPU2", "GPU1", "GPU0")


def test_a_second_list_counts_in_the_first():
    assert devices(gpus(), *[Claim(visible=("1,2,3", "2,0"))] * 2) == ("GPU3", "GPU1")


@pytest.mark.parametrize("text", ["9", "GPU-99", "GPU-", "nonsense", "MIG-12345678"])
def test_a_list_that_names_no_gpu_of_the_host_is_said(text):
    placed = place_ranks_of_host(gpus(), [Claim(visible=(text,))] * 2)
    assert placed.devices == ("GPU0", "GPU1")
    assert placed.warnings == (f"visible GPUs {text!r} are not among those of node: the list is passed over",)


@pytest.mark.parametrize("text", ["", "-1", " "])
def test_a_list_that_hides_all_gpus(text):
    placed = place_ranks_of_host(gpus(), [Claim(visible=(text,))])
    assert (placed.devices, placed.warnings) == (("GPU0",), ())


def test_an_abbreviation_of_several_is_none():
    uuids = {"GPU0": "GPU-ab1", "GPU1": "GPU-ab2"}
    placed = place_ranks_of_host(gpus(2, facts={"uuids": uuids}), [Claim(visible=("GPU-ab",))])
    assert len(placed.warnings) == 1


def test_one_gpu_under_one_name_for_all_is_said():
    placed = place_ranks_of_host(gpus(1), [Claim(visible=("0",))] * 4)
    assert placed.devices == ("GPU0",) * 4
    assert placed.warnings[0].startswith("4 ranks of node are shown GPU0 alone")
    assert place_ranks_of_host(gpus(1), [Claim(visible=("0",))]).warnings == ()


def test_what_ranks_have_chosen_counts_if_they_are_all_different():
    claims = [Claim(chosen=f"0000:0{i}:00.0", visible=("0,1,2,3",)) for i in (4, 2, 1)]
    assert devices(gpus(), *claims) == ("GPU3", "GPU1", "GPU0")
    same = [Claim(chosen="0000:01:00.0")] * 2  # both have only touched the first one so far
    assert devices(gpus(), *same) == ("GPU0", "GPU1")
    assert devices(gpus(), Claim(chosen="0000:99:00.0")) == ("GPU0",)


def test_cores_that_a_rank_is_bound_to():
    host = cores("0,4", "1,5", "2,6", "3,7")
    assert devices(host, Claim(cpus="3,7"), Claim(cpus="1")) == ("cpu3", "cpu1")
    halves = [Claim(cpus="0-1,4-5"), Claim(cpus="2-3,6-7"), Claim(cpus="0-1,4-5"), Claim(cpus="2-3,6-7")]
    assert devices(host, *halves) == ("cpu0", "cpu2", "cpu1", "cpu3")
    assert devices(host, *[Claim(cpus="0-7")] * 3) == ("cpu0", "cpu1", "cpu2")
    assert devices(host, Claim(cpus="12"), Claim()) == ("cpu0", "cpu1")


def test_every_device_has_its_near_nic():
    placed = place_ranks_of_host(gpus(), [Claim()] * 4)
    assert placed.nics == ("mlx5_0", "mlx5_0", "mlx5_1", "mlx5_1")


def test_nics_as_near_are_taken_in_turn_and_fast_ones_first():
    host = gpus(2)
    near = [Pair(f"GPU{i}", nic, "NODE") for i in range(2) for nic in ("eth0", "ib0", "ib1")]
    nics = [Device(name, "nic", "node", name) for name in ("eth0", "ib0", "ib1")]
    ends = tuple(d for d in host.devices if d.kind == "gpu")
    facts = {"port_gb_per_s": {"eth0": 0.125, "ib0": 50.0, "ib1": 50.0}}
    told = Topology("node", "test", (*ends, *nics), (), tuple(near), facts=facts)
    assert nearest_nics(told, ["GPU1", "GPU0", "GPU1"]) == ("ib1", "ib0", "ib1")
    assert nearest_nics(Topology("node", "test", ends, ()), ["GPU0"]) == (None,)


def test_without_codes_the_numa_node_tells_and_links_the_rate():
    ends = [Device("cpu0", "cpu", "node", numa=0), Device("cpu1", "cpu", "node", numa=1)]
    nics = [Device(name, "nic", "node", name, numa=numa) for name, numa in (("a", 0), ("b", 1), ("c", 1))]
    network = Device("network", "switch", "network")
    links = both_ways("b", "network", "network", gb_per_s=1.0) + both_ways("c", "network", "network", gb_per_s=2.0)
    host = Topology("node", "test", (*ends, *nics, network), links)
    assert nearest_nics(host, ["cpu0", "cpu1"]) == ("a", "c")


def test_what_a_process_says_of_itself():
    environment = {"OMPI_COMM_WORLD_LOCAL_RANK": "3", "CUDA_VISIBLE_DEVICES": "1,0"}
    assert own_claim(environment, {}, {0, 1, 5}) == Claim("0-1,5", ("1,0",), None, 3)
    amd = {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    assert own_claim(amd, {}, {0}).visible == ("0,1", "1")
    assert own_claim({"LOCAL_RANK": "x", "SLURM_LOCALID": "2"}, {}, {0}).local_rank == 2
    assert own_claim({}, {}, {0}) == Claim("0")


def fake_torch(initialised, **ids):
    properties = SimpleNamespace(**ids)
    cuda = SimpleNamespace(
        is_initialized=lambda: initialised, current_device=lambda: 1, get_device_properties=lambda index: properties
    )
    return {"torch": SimpleNamespace(cuda=cuda)}


def test_the_gpu_that_torch_has_chosen():
    ids = {"pci_domain_id": 0, "pci_bus_id": 0xB7, "pci_device_id": 0}
    assert own_claim({}, fake_torch(True, **ids), {0}).chosen == "0000:b7:00.0"
    assert own_claim({}, fake_torch(False, **ids), {0}).chosen is None
    assert own_claim({}, fake_torch(True), {0}).chosen is None
    assert own_claim({}, {"torch": SimpleNamespace()}, {0}).chosen is None


@pytest.mark.parametrize(("size", "found"), [(1, "a"), (2, "ab"), (4, "aabb"), (5, "aaabb")])
def test_spread(size, found):
    assert spread(["a", "b"], size) == list(found)
