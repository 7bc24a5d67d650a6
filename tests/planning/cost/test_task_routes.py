"""Routes of tasks: the cheapest, named ones, none for computing; each kept once."""

from itertools import pairwise

import numpy as np
import pytest

from tests.machines import hosts
from topocomm import PlanError
from topocomm.planning.cost.simulated_work import WorkBuilder
from topocomm.planning.cost.task_routes import route_tasks
from topocomm.planning.routing.paths import NoRouteError, PathFinder


def test_equal_messages_share_a_route():
    topology = hosts(2, 2)
    builder = WorkBuilder(topology.endpoints)
    builder.send([0, 0, 0, 0], [1, 2, 1, 2], 8)
    builder.compute(3, 2.0)
    builder.send(0, 1, 8, latency_us=9.0)
    found = route_tasks(builder.build(), PathFinder(topology))
    near, far, again, far_again, none, own = found.of_task.tolist()
    assert (near, far) == (again, far_again)
    assert near == own != none
    assert found.latency_us.tolist() == pytest.approx([0.6, 5.0, 0.6, 5.0, 0.0, 9.0])
    assert found.routes.hops[found.of_task].tolist() == [2, 4, 2, 4, 0, 2]
    assert np.isinf(found.routes.gb_per_s[none])


def test_a_path_of_its_own_is_taken():
    topology = hosts(2, 2)
    paths = PathFinder(topology)
    builder = WorkBuilder(topology.endpoints)
    way = ("h0/GPU0", "h0/NIC0", "rail0", "h1/NIC0", "h1/GPU0")
    builder.send(0, 2, 8, path=builder.path(way))
    found = route_tasks(builder.build(), paths)
    links = found.routes.take(found.of_task.astype(np.int64)).links
    assert [paths.edges[link] for link in links] == list(pairwise(way))


def test_ends_without_a_route_are_named():
    topology = hosts(1, 2)
    builder = WorkBuilder((*topology.endpoints, "h0/switch"))
    builder.send(0, 2, 8)
    with pytest.raises(NoRouteError, match="h0/GPU0 -> h0/switch: not an endpoint"):
        route_tasks(builder.build(), PathFinder(topology))
    builder = WorkBuilder(topology.endpoints)
    builder.send(0, 1, 8, path=builder.path(("h0/GPU0", "h0/NIC0", "h0/GPU1")))
    with pytest.raises(PlanError, match="does not lead from h0/GPU0 to h0/GPU1"):
        route_tasks(builder.build(), PathFinder(topology))
