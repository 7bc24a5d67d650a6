"""Results that threads share: made once each, several at a time, with errors for all who wait."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event, Lock

from tests.machines import switch
from topocomm import PlanError, plan
from topocomm.planning import planner
from topocomm.planning.candidates import candidate_builds
from topocomm.planning.shared_results import SharedResults

WAIT_S = 30.0
THREADS = 6


class Counted:
    """A `make` that counts its calls, and holds each until all other threads wait."""

    def __init__(self, error=None):
        self.calls, self.error = [], error
        self.begun, self.go_on = Event(), Event()

    def __call__(self, key):
        self.calls.append(key)
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return key, len(self.calls)


class Waited:
    """A wait that says when so many threads have come to it."""

    def __init__(self, threads, wait):
        self.lock, self.missing, self.all_wait, self.wait = Lock(), threads, Event(), wait

    def __call__(self):
        with self.lock:
            self.missing -= 1
            if not self.missing:
                self.all_wait.set()
        return self.wait()


def asked_together(make, key="key"):
    """The results, and the futures, of threads that ask for one key while the first of them makes it."""
    results = SharedResults(most=4)
    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(results.get, key, partial(make, key))]
        assert make.begun.wait(WAIT_S)
        pending = results._pending[key]
        waited = pending.result = Waited(THREADS - 1, pending.result)
        asked += [pool.submit(results.get, key, partial(make, key)) for _ in range(THREADS - 1)]
        assert waited.all_wait.wait(WAIT_S)
        make.go_on.set()
        return results, asked


def test_threads_that_ask_for_the_same_share_one_result():
    make = Counted()
    results, asked = asked_together(make)
    assert {id(one.result(WAIT_S)) for one in asked} == {id(results.get("key", lambda: make("key")))}
    assert make.calls == ["key"]
    assert not results._pending


def test_an_error_reaches_all_who_wait_and_is_not_kept():
    make = Counted(PlanError("no way"))
    results, asked = asked_together(make)
    assert [str(one.exception(WAIT_S)) for one in asked] == ["no way"] * THREADS
    assert make.calls == ["key"] and not results._pending
    make.error = None
    assert results.get("key", lambda: make("key")) == ("key", 2)


def test_who_waits_makes_what_an_interrupted_thread_does_not():
    make = Counted(KeyboardInterrupt())
    interrupted = []

    def interrupt_once(key):
        try:
            return make(key)
        except KeyboardInterrupt as error:
            make.error = None
            interrupted.append(error)
            raise

    interrupt_once.begun, interrupt_once.go_on = make.begun, make.go_on
    _, asked = asked_together(interrupt_once)
    assert [type(one.exception(WAIT_S)) for one in asked] == [KeyboardInterrupt] + [type(None)] * (THREADS - 1)
    assert {one.result() for one in asked[1:]} == {("key", 2)}
    assert len(interrupted) == 1


def test_the_least_recently_used_is_dropped():
    calls = []
    results = SharedResults(most=2)
    for key in "abacab":
        assert results.get(key, lambda key=key: calls.append(key) or key) == key
    assert calls == ["a", "b", "c", "b"]


def test_different_plans_are_made_at_the_same_time(monkeypatch):
    together = Barrier(2)

    def builds(request, paths):
        together.wait(WAIT_S)
        return candidate_builds(request, paths)

    monkeypatch.setattr(planner, "candidate_builds", builds)
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(plan, switch(3), payload_bytes=4 * rows) for rows in (1117, 2239)]
        assert [one.result().payload_bytes for one in asked] == [4468, 8956]


def test_the_same_plan_is_made_once(monkeypatch):
    calls = []

    def builds(request, paths):
        calls.append(request)
        return candidate_builds(request, paths)

    monkeypatch.setattr(planner, "candidate_builds", builds)
    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(plan, switch(4), payload_bytes=5556) for _ in range(THREADS)]
        assert len({one.result().digest for one in asked}) == 1
    assert len(calls) == 1
