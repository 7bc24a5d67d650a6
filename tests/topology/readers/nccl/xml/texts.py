"""Builds NCCL topology files of invented machines."""

from __future__ import annotations

GEN4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'
GEN5 = 'link_speed="32.0 GT/s PCIe" link_width="16"'
INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"'
AMD = 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"'
TAG = 'dev="0" sm="80" rank="0"'
"""Attributes of the only GPU of a job."""


def system(*cpus: str, version: str | None = "1") -> str:
    attribute = "" if version is None else f' version="{version}"'
    return f"<system{attribute}>\n" + "\n".join(cpus) + "\n</system>\n"


def cpu(numa: object, *inside: str, more: str = INTEL) -> str:
    number = "" if numa is None else f' numaid="{numa}"'
    return f"<cpu{number} {more}>\n" + "\n".join(inside) + "\n</cpu>"


def bridge(bus: str, *inside: str, link: str = GEN4) -> str:
    return f'<pci busid="{bus}" class="0x060400" {link}>\n' + "\n".join(inside) + "\n</pci>"


def gpu(bus: str, tag: str | None = None, *links: str, link: str = GEN4, kind: str = "0x030200") -> str:
    """`tag` holds the attributes of `<gpu>`; None leaves it out."""
    inside = "" if tag is None else f"\n<gpu {tag}>" + "".join(links) + "</gpu>\n"
    return f'<pci busid="{bus}" class="{kind}" {link}>{inside}</pci>'


def nvlink(target: str, count: object = 1, tclass: str | None = "0x030200", tag: str = "nvlink", more: str = "") -> str:
    known = "" if tclass is None else f' tclass="{tclass}"'
    return f'<{tag} target="{target}" count="{count}"{known}{more}/>'


def nic(bus: str, *nets: str, link: str = GEN4) -> str:
    inside = "<nic>" + "".join(nets) + "</nic>" if nets else ""
    return f'<pci busid="{bus}" class="0x020000" {link}>{inside}</pci>'


def net(name: str, dev: object, speed: object = 100000) -> str:
    return f'<net name="{name}" dev="{dev}" speed="{speed}" port="1"/>'


def h100_half() -> str:
    """Two GPUs of a machine with two NVSwitches, their NICs, one of them with two ports; and a GPU on socket 1."""
    switches = nvlink("0000:1a:00.0", 9, "0x068000") + nvlink("0000:1b:00.0", 9, "0x068000")
    return system(
        cpu(
            0,
            bridge(
                "0000:05:00.0",
                gpu("0000:07:00.0", 'dev="0" sm="90" rank="0" gdr="1"', switches, link=GEN5),
                nic("0000:08:00.0", net("mlx5_0", 0, 400000), link=GEN5),
                link=GEN5,
            ),
            bridge(
                "0000:25:00.0",
                bridge("0000:26:00.0", gpu("0000:27:00.0", 'dev="1" sm="90" rank="1" gdr="1"', switches), link=GEN5),
                nic("0000:28:00.0", net("mlx5_1", 1, 200000), net("mlx5_2", 2, 200000), link=GEN5),
                link=GEN5,
            ),
            more='affinity="00000000,0000000f" ' + INTEL,
        ),
        cpu(
            1,
            gpu("0000:87:00.0", 'dev="2" sm="90" rank="2" gdr="0"', switches, link=GEN5),
            more='affinity="0000000f,000000f0" ' + INTEL,
        ),
    )
