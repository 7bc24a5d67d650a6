"""Checks of environment variables that CUDA reads when it starts."""

from __future__ import annotations

import os
from pathlib import Path

from topocomm.doctor.finding import Environment, Finding
from topocomm.execute.device.device_library import (
    CONNECTIONS,
    DEFAULT_CONNECTIONS,
    FEWEST_CONNECTIONS,
    FOR_THREADS,
    MODULE_LOADING,
    MOST_CONNECTIONS,
)

DRIVER = Path("/dev/nvidiactl")
"""Device file of NVIDIA's driver, present in containers too."""
MODES = ("LAZY", "EAGER")


def check_cuda(environment: Environment = os.environ, driver: Path = DRIVER) -> list[Finding]:
    """Check when kernels are loaded and how many queues a GPU has; empty without NVIDIA's driver."""
    if not driver.exists():
        return []
    return [_modules(environment.get(MODULE_LOADING)), _queues(environment.get(CONNECTIONS))]


def _modules(value: str | None) -> Finding:
    check = "CUDA modules"
    remedy = f"where ranks are threads: export {MODULE_LOADING}={FOR_THREADS[MODULE_LOADING]} before the program starts"
    if value is not None and value not in MODES:
        return Finding("warn", check, f"{MODULE_LOADING}={value}: CUDA knows {' and '.join(MODES)}", remedy)
    if value == FOR_THREADS[MODULE_LOADING]:
        return Finding("ok", check, f"{MODULE_LOADING}={value}: kernels of libraries are loaded when CUDA starts")
    text = (
        f"{MODULE_LOADING} {_said(value)}: a kernel is loaded when it is first launched, and that waits for the GPU. "
        "One process a rank needs nothing else; where ranks are threads, one may be awaited forever"
    )
    return Finding("info", check, text, remedy)


def _queues(value: str | None) -> Finding:
    check = "CUDA queues"
    remedy = f"where ranks share a GPU: export {CONNECTIONS}={FOR_THREADS[CONNECTIONS]} before the program starts"
    number = DEFAULT_CONNECTIONS if value is None else int(value) if value.isdecimal() else 0
    if not FEWEST_CONNECTIONS <= number <= MOST_CONNECTIONS:
        known = f"CUDA takes {FEWEST_CONNECTIONS} to {MOST_CONNECTIONS}"
        return Finding("warn", check, f"{CONNECTIONS}={value}: {known}", remedy)
    if number == MOST_CONNECTIONS:
        return Finding("ok", check, f"{CONNECTIONS}={value}")
    text = (
        f"{CONNECTIONS} {_said(value)}: {number} queue{'s' * (number != 1)} from a process to a GPU. One rank a GPU "
        "needs no more; where threads share one, a kernel may stand behind another's that waits for its rank"
    )
    return Finding("info", check, text, remedy)


def _said(value: str | None) -> str:
    return "is not set" if value is None else f"is {value}"
