"""Threads of kernels beside bound ones of OpenMP."""

import os
import threading

import pytest

from attention.engines.vllm.cpu_cores import WorkerCores, listed_cores


@pytest.mark.parametrize(
    ("environment", "cores"),
    [
        ({"GOMP_CPU_AFFINITY": "0 2 11"}, {0, 2, 11}),
        ({"KMP_AFFINITY": "granularity=fine,explicit,proclist=[4,5]"}, {4, 5}),
        ({"OMP_PLACES": "{3,1}"}, {1, 3}),
        ({"OMP_PLACES": "cores"}, set()),
        ({"GOMP_CPU_AFFINITY": ""}, set()),
        ({}, set()),
    ],
    ids=str,
)
def test_cores_are_read_as_vllm_writes_them(environment, cores):
    assert listed_cores(environment) == cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no call binds threads here")
def test_threads_of_a_block_use_all_cores_and_the_caller_is_bound_again():
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    listed = {"GOMP_CPU_AFFINITY": " ".join(map(str, cores[:2]))}
    seen = []

    def on_bound_thread():
        os.sched_setaffinity(0, {cores[0]})
        with WorkerCores(listed):
            kernel = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
            kernel.start()
            kernel.join()
        seen.append(os.sched_getaffinity(0))

    caller = threading.Thread(target=on_bound_thread)  # so that the test's own thread stays as it is
    caller.start()
    caller.join()
    assert seen == [set(cores[:2]), {cores[0]}]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no call binds threads here")
def test_a_thread_that_is_not_bound_is_left_alone():
    before = os.sched_getaffinity(0)
    with WorkerCores({"GOMP_CPU_AFFINITY": str(min(before))}):
        assert os.sched_getaffinity(0) == before
    with WorkerCores({}):
        assert os.sched_getaffinity(0) == before
