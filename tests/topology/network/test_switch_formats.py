"""Files that describe a fabric: Slurm's and topograph's, and lists of host names."""

import json

import pytest

from tests.topology import damage
from tests.topology.network.test_switches import CONF
from topocomm.errors import TopologyError
from topocomm.topology.network import switches as fabric
from topocomm.topology.network.switch_formats import expand
from topocomm.topology.network.switches import matches, read

SLURM_YAML = """\
---
- topology: blocks
  block:
    block_sizes:
      - 2
    blocks:
    - block: b1
      nodes: node[1-4]
- topology: trees
  cluster_default: true
  tree:
    switches:
      - switch: spine
        children: s[1-2]
      - switch: s1        # the first
        nodes: node[1-2]
      - switch: s2
        nodes: node3,node4
- topology: other
  tree:
    switches:
      - switch: alone
        nodes: node9
"""
MODEL = """\
# a picture
switches:
- name: spine
  metadata:
    region: "us-west # not a comment"
  switches: [s1,s2]
- name: s1
  capacity_blocks: [cb1]
- name: s2
  capacity_blocks:
  - cb2
capacity_blocks:
- name: cb1
  type: GB200
  nodes: [node1, node2]
- name: cb2
  nodes: ["node[3-4]"]
"""
SWITCHES = {"s1": (), "s2": (), "spine": ("s1", "s2")}
HOSTS = {"s1": ("node1", "node2"), "s2": ("node3", "node4"), "spine": ()}


@pytest.mark.parametrize(
    ("text", "source"), [(CONF, "topology.conf"), (SLURM_YAML, "topology.yaml"), (MODEL, "topograph")]
)
def test_switches_and_hosts(text, source):
    assert matches(text)
    found = read(text, "dir/file")
    assert (found.source, found.name) == (source, "file")
    assert dict(found.switches) == SWITCHES
    assert dict(found.hosts) == HOSTS


def test_json_of_the_same():
    tree = {"switches": [{"switch": "spine", "children": "s[1-2]"}, {"switch": "s1", "nodes": "node[1-2]"}]}
    tree["switches"].append({"switch": "s2", "nodes": "node3,node4"})
    found = read(json.dumps([{"topology": "t", "tree": tree}]), "file")
    assert (dict(found.switches), dict(found.hosts)) == (SWITCHES, HOSTS)
    model = {
        "switches": {"spine": {"switches": ["s1", "s2"]}, "s1": {"nodes": ["node1", "node2"]}, "s2": {"nodes": []}}
    }
    assert dict(read(json.dumps(model), "file").switches) == {"spine": ("s1", "s2"), "s1": (), "s2": ()}


def test_what_is_chosen_or_passed_over_is_said():
    assert read(SLURM_YAML, "t.yaml").warnings == ("t.yaml: 2 trees; 'trees' is used",)
    found = read(CONF + "BlockName=b1 Nodes=node[1-4]\nBlockSizes=4\n", "d/t.conf")
    assert found.warnings == ("t.conf: 1 blocks are no switches and are passed over",)
    found = read(CONF + "SwitchName=s3 Nodes=node4\n", "t.conf")
    assert found.warnings == ("t.conf: node4 is below s2 and s3: the first counts",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", r"f:2: switch 'a' is described twice"),
        ("SwitchName=a Nodes=n1\nNode=b\n", r"f:2: 'Node=b' is not understood; expected lines `SwitchName"),
        ("SwitchName=a\n", r"f:1: switch 'a' has neither Nodes nor Switches"),
        ("SwitchName=a Nodes=n1 junk\n", r"f:1: 'junk' is not understood"),
        ("SwitchName=a Nodes=n1 Nodes=n2\n", r"f:1: Nodes is there twice"),
        ("SwitchName=a Nodes=n1 Colour=red\n", r"f:1: 'colour' is not known"),
        ("SwitchName=a Nodes=n[3-1]\n", r"f:1: '3-1' in brackets is no range"),
        ("SwitchName=a Nodes=n[1\n", r"f:1: 'n\[1' is no name and no list"),
        ("SwitchName=a Nodes=n[1-99999999]\n", r"f:1: '1-99999999' gives more than 65536 names"),
        ("SwitchName=a Nodes=n[1-999][1-999]\n", r"gives more than 65536 names"),
        ("SwitchName=a Nodes=n[1-40000]\nSwitchName=b Nodes=m[1-40000]\n", r"f:2: more than 65536 names in one file"),
        ("SwitchName=a Switches=b\n", r"f: switch 'a' has 'b' below it, which is not described"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\n", r"f: switch '.' is below itself"),
        ("SwitchName=a Switches=c\nSwitchName=b Switches=c\nSwitchName=c Nodes=n\n", r"'c' is below 'a' and 'b'"),
        ("BlockName=a Nodes=n1\n", r"f: no switch in it"),
        ("switches: 7\n", r"f: switches: expected a list of mappings"),
        ("switches:\n- name: a\n  nodes: [n1\n", r"f:\d+: no YAML: "),
        ("switches:\n- name: a\n  capacity_blocks: [cb]\n", r"the capacity block 'cb' is not described"),
        ("switches:\n- nodes: [a]\n", r"f: switches\[0\].name: expected a name"),
        ("switches:\n- name: &a b\n", r"f:2: anchors, aliases and tags are not read"),
        ("switches:\n\t- name: a\n", r"f:2: .*indent by blanks, not by tabs"),
        ("switches:\n- name: a\n   odd: b\n", r"f:3: no YAML: "),
        ("- topology: t\n  flat: true\n  switches:\n", r"f: no topology with a `tree`"),
        ('{"switches": [1]}', r"f: switches: expected a list of mappings"),
        ('{"switches": NaN}', r"f: not usable JSON: NaN is no JSON number"),
        ('{"switches": [', r"f:1: not JSON"),
        ('{"other": []}', r"f: expected a list of topologies"),
    ],
)
def test_damage_is_named_with_its_place(text, message):
    with pytest.raises(TopologyError, match=message):
        read(text, "f")


def test_changed_texts_are_read_or_refused():
    words = [*"[]{}:-,\"'#\\= \n\t", "[1-9]", "Switches=", "- ", "\n  ", "nodes:", "node1"]
    found, _ = damage.attempts(fabric, (CONF, SLURM_YAML, MODEL), [damage.put(words, range(6))], seed=7, times=1500)
    assert found
    assert all(set(one.hosts) == set(one.switches) for one in found)


@pytest.mark.parametrize(
    "text",
    [
        "SwitchName=" + "a" * 1_000_000,
        "SwitchName=a Nodes=" + "n," * 400_000,
        "SwitchName=a " + " " * 1_000_000 + "x",
        "a" * 1_000_000 + "\nSwitchName=b Nodes=c",
        "switches:\n" + "- " * 400_000,
        "switches:\n" + "-\n" * 400_000,
        "switches:\n- a" + " " * 1_000_000 + "b",
        "switches: " + "[" * 1_000_000,
        "switches:\n" + "".join(f"- name: s{i}\n" for i in range(20_000)),
        '{"switches": ' + "[" * 100_000,
        "".join(f"SwitchName=s{i} Switches=s{i + 1}\n" for i in range(20_000)),
    ],
)
def test_long_texts_take_no_long_time(text):
    with pytest.raises(TopologyError):
        read(text, "f")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a1,b", ["a1", "b"]),
        ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-2]-ib, x", ["n1-ib", "n2-ib", "x"]),
    ],
)
def test_lists_of_names(text, names):
    assert expand(text) == names


@pytest.mark.parametrize("text", ["", ",", "a,,b", "n[]", "n[1-]", "n]1[", "n[[1]]"])
def test_no_lists_of_names(text):
    with pytest.raises(ValueError, match="expected"):
        expand(text)
