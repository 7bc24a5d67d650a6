"""What a plan is made for: a launch a round between devices, nothing of it in host memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.execute.device_jobs import fake_nccl, run_in, run_on_devices
from tests.machines import hosts, switch
from tests.plans import request_on
from topocomm import SUM, Field, Operator, TopocommError, catalog, run_local
from topocomm.execute.device.device_call import DeviceCall
from topocomm.execute.transports.device import nccl_library
from topocomm.planning.planner import make_plan
from topocomm.topology.links import GROUP_LAUNCH_US

X = torch.ones(1024)


def launched_plan(topology, like=X, operator=SUM, **options):
    """The plan that a call between fake devices executes; the same that `explain` says."""

    def body(comm):
        before = comm.explain("allreduce", like=like, operator=operator)
        call = comm.prepare("allreduce", like=like, operator=operator)
        assert comm.explain("allreduce", like=like, operator=operator) is call.plan
        return before, call.plan, len(getattr(call._engine, "_steps", ())) if isinstance(call, DeviceCall) else 0

    (before, plan, steps), *others = run_on_devices(body, len(topology.endpoints), topology=topology, **options)
    assert {other[1].digest for other in others} <= {plan.digest}
    return before, plan, steps


@pytest.mark.parametrize(("count", "ports"), [(1, 7), (2, 15)])
def test_plans_between_devices_take_few_rounds(count, ports):
    machine = catalog("dgx-h100", hosts=count)
    before, plan, steps = launched_plan(machine)
    assert plan.launch_us == GROUP_LAUNCH_US
    assert (plan.rounds, plan.ports) == (1, ports)
    assert plan is before or plan.digest == before.digest
    assert steps == 2, "a group, then its folds"


def test_plans_across_four_hosts_take_few_rounds():
    machine = catalog("dgx-h100", hosts=4)
    asked = request_on(machine, "allreduce", SUM, SUM.default_layout(256))
    free, dear = (
        make_plan(machine, replace(asked, ports=ports, launch_us=us)) for us, ports in ((0.0, 1), (GROUP_LAUNCH_US, 7))
    )
    assert free.rounds > dear.rounds == 2


def test_what_was_measured_takes_over():
    machine = replace(switch(8), launch_us=0.0)
    _, free, _ = launched_plan(machine, torch.ones(4096))
    assert (free.launch_us, free.figures.predicted_us) == (0.0, free.figures.predicted_us)
    _, dear, _ = launched_plan(replace(machine, launch_us=50.0), torch.ones(4096))
    assert dear.launch_us == 50.0
    assert dear.rounds == 1


def test_without_a_launch_more_rounds_are_chosen():
    long = torch.ones(1 << 18)
    _, free, _ = launched_plan(replace(switch(8), launch_us=0.0), long)
    _, dear, _ = launched_plan(replace(switch(8), launch_us=500.0), long)
    assert free.rounds > dear.rounds


def test_canonical_order_takes_one_round_too():
    def body(comm):
        return comm.prepare("allreduce", like=X, operator=SUM, order="canonical").plan

    plan = run_on_devices(body, 8, topology=switch(8))[0]
    assert (plan.order, plan.rounds) == ("canonical", 1)


NUMPY_ONLY = Operator(
    "sum by NumPy", (Field("value"),), lambda a, b: {"value": np.asarray(a["value"]) + b["value"]}, {"value": 0}, True
)


@pytest.mark.parametrize("why", ["no NCCL", "operator", "host"])
def test_values_that_move_in_host_memory_pay_for_no_launch(why, monkeypatch):
    machine = replace(hosts(2, 2), launch_us=30.0)
    like = X.numpy() if why == "host" else {"value": X} if why == "operator" else X
    operator = NUMPY_ONLY if why == "operator" else SUM

    def body(comm):
        plan = comm.prepare("allreduce", like=like, operator=operator).plan
        assert comm.explain("allreduce", like=like, operator=operator) is plan
        return plan

    with fake_nccl(4) as world:
        if why == "no NCCL":

            def missing():
                raise TopocommError("cupy is not installed")

            monkeypatch.setattr(nccl_library, "load_nccl", missing)
        plan = run_in(world, body, topology=machine)[0]
    as_host = run_local(
        lambda comm: comm.explain("allreduce", like=X.numpy(), operator=SUM), ranks=4, topology=machine
    )[0]
    assert (plan.launch_us, plan.ports) == (0.0, 1)
    assert plan.schedule.rounds == as_host.schedule.rounds
