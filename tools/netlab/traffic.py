"""Limits of cables as commands of tc: a token bucket at each end, and a delay where the kernel has netem.

A bucket holds few packets, so that a short message takes its time on the link as a long one does: at 100 Mbit/s a
packet of 1,514 bytes takes 121 us. What waits for tokens is a queue of `QUEUE_BYTES`: no packet of the lab's traffic
is lost, as on a network whose switches stop their senders.
"""

from __future__ import annotations

from topocomm.errors import TopologyError

BURST_BYTES = 6144
"""Size of the bucket: four Ethernet packets, at the least."""
BURST_US = 20.0
"""Time at the link's rate that the bucket holds where that is more: timers of the kernel are late by as much."""
QUEUE_BYTES = 8 << 20
"""Bytes that wait at a port; a switch's buffer and those of its senders, that it stops."""
LEAST_BITS_PER_S, MOST_BITS_PER_S = 8_000, 100_000_000_000


def bits_per_s(gb_per_s: float) -> int:
    """Return a rate as tc counts it.

    Raises:
        TopologyError: It is not between 1 kB/s and 12.5 GB/s.
    """
    rate = round(gb_per_s * 8e9)
    if not LEAST_BITS_PER_S <= rate <= MOST_BITS_PER_S:
        raise TopologyError(f"a link of {gb_per_s:g} GB/s: the lab makes rates from 1e-06 to 12.5 GB/s")
    return rate


def burst_bytes(rate: int) -> int:
    """Return the bucket of a rate in bit/s."""
    return max(BURST_BYTES, round(rate / 8 * BURST_US / 1e6))


def limit_commands(device: str, gb_per_s: float | None, delay_us: float = 0.0, *, change: bool = False) -> list[str]:
    """Return the lines for `tc -batch` that limit what a device sends; none where there is nothing to limit.

    Args:
        device: Name of the interface.
        gb_per_s: Its rate; None is not limited.
        delay_us: Delay of every packet; needs netem in the kernel.
        change: The device has a limit, which gets another rate.
    """
    lines = []
    verb = "change" if change else "add"
    if gb_per_s is not None:
        rate = bits_per_s(gb_per_s)
        lines.append(
            f"qdisc {verb} dev {device} root handle 1: tbf rate {rate}bit burst {burst_bytes(rate)} limit {QUEUE_BYTES}"
        )
    if delay_us > 0 and not change:
        parent = "parent 1:1" if lines else "root"
        lines.append(f"qdisc add dev {device} {parent} handle 2: netem delay {delay_us:g}us limit 10000")
    return lines
