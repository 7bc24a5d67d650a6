"""Queues of ports: the r-th release admits the next one in order."""

import numpy as np

from topocomm.planning.cost.port_queues import PortQueues


def queues(held, places):
    starts = np.cumsum([0, *map(len, held)])
    return PortQueues(
        starts, np.array([port for own in held for port in own], dtype=np.int32), np.array(places, dtype=np.int64)
    )


def released(own, *tasks):
    admitted, awaited = own.release(np.array(tasks))
    return list(zip(admitted.tolist(), awaited.tolist(), strict=True))


def test_a_port_with_one_place_admits_one_after_the_other():
    own = queues([[0], [0], [0]], [1])
    assert own.waiting().tolist() == [1, 2]
    assert released(own, 0) == [(1, 0)]
    assert released(own, 1) == [(2, 1)]
    assert released(own, 2) == []


def test_releases_of_one_port_at_once_admit_as_many():
    own = queues([[0], [0], [0], [0], [0]], [2])
    assert own.waiting().tolist() == [2, 3, 4]
    assert released(own, 0, 1) == [(2, 0), (3, 0)]
    assert released(own, 2, 3) == [(4, 2)]


def test_a_task_waits_once_for_each_port():
    own = queues([[0, 1], [0, 1], [1]], [1, 1])
    assert sorted(own.waiting().tolist()) == [1, 1, 2]
    assert sorted(released(own, 0)) == [(1, 0), (1, 0)]
    assert released(own, 1) == [(2, 1)]


def test_ports_without_tasks():
    own = queues([[], []], [])
    assert own.empty
    assert own.waiting().tolist() == []
    assert released(own, 0) == []
