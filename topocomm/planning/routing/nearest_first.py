"""Dijkstra's search (1959), for every search of cheapest routes in a graph of devices."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

Label = TypeVar("Label", bound=tuple[Any, ...])


def nearest_first(
    heap: list[Label], device_of: Callable[[Label], Hashable], onward: Callable[[Label], Iterable[Label]]
) -> None:
    """Call `onward` once for every device that is reached, with its least label, in rising order.

    `heap` has the initial labels in any order and is emptied; `onward` returns labels of the next devices, none less.
    """
    heapq.heapify(heap)
    reached = set[Hashable]()
    while heap:
        label = heapq.heappop(heap)
        device = device_of(label)
        if device not in reached:
            reached.add(device)
            for following in onward(label):
                heapq.heappush(heap, following)
