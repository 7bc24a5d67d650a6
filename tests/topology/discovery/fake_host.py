"""Tools on the machine of the fixture `host`, and what is discovered there."""

import stat
from pathlib import Path

from topocomm.topology.discovery.local_host import discover

DATA = Path(__file__).parents[2] / "data/topologies"
TOPO = f'while read -r l; do echo "$l"; done < {DATA}/nvswitch-16.txt'


def find(host):
    return discover(sysfs=host / "sys", proc=host / "proc", dev=host / "dev")


def add_tool(host, name, script):
    file = host / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
