"""Simulated times of NCCL's algorithms over those of their closed forms."""

import topocomm
from topocomm.planning.cost.events import simulate
from topocomm.planning.libraries.job_shape import job_shape
from topocomm.planning.libraries.library_figures import DEFAULTS
from topocomm.planning.libraries.nccl_choice import choices
from topocomm.planning.libraries.nccl_times import time_us
from topocomm.simulation.libraries import work_of


def ratio(name, system, hosts, payload_bytes, collective="allreduce"):
    """Simulated over closed form, with the protocol that the tuner takes for the algorithm."""
    topology = topocomm.catalog(system, hosts=hosts)
    shape = job_shape(topology)
    own = [c for c in choices(shape, collective, payload_bytes) if c.algorithm == name.removeprefix("nccl-")]
    choice = min(own, key=lambda c: c.tuner_us)
    simulated_us = simulate(work_of(name, topology, collective, payload_bytes), topology).total_us
    return simulated_us / time_us(shape, DEFAULTS, collective, payload_bytes, choice)
