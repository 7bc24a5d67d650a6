"""A double of Triton's driver: kernels are compiled for a GPU that is not there, loaded slowly, not run.

Use it in a process without Triton's interpreter: `with fake_driver() as driver`. All is Triton's own but the GPU: its
compiler, its caches, and the kernels that it hands out.
"""

import gc
import threading
import time
from contextlib import contextmanager
from itertools import count

from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.driver import driver as active


class FakeDriver:
    """What Triton asks of a driver.

    Attributes:
        launches: (thread, device, kernel's name, function, arguments) of every launch.
        loads: (thread, device, kernel's name) of every module that was loaded.
        wrong: What must not happen.
        on_launch: Called by every launch.
    """

    def __init__(self, load_s):
        self.launches, self.loads, self.unloads, self.wrong = [], [], [], []
        self.on_launch = lambda name: None
        self.utils, self._load_s = self, load_s
        self._devices, self._functions, self._busy = threading.local(), count(1000), threading.Lock()

    def use(self, device):
        """Make a device the current one of this thread."""
        self._devices.current = device

    def get_current_device(self):
        return getattr(self._devices, "current", 0)

    def get_current_stream(self, device):
        return 7

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_device_properties(self, device):
        return {"max_shared_mem": 232448, "multiprocessor_count": 132}

    def load_binary(self, name, binary, shared, device):
        """Takes its time, as a driver does that waits for its GPU; meanwhile other threads run."""
        if not self._busy.acquire(blocking=False):
            self.wrong.append(f"{name} is loaded while another kernel is")
            self._busy.acquire()
        try:
            time.sleep(self._load_s)
            self.loads.append((threading.current_thread().name, device, name))
            function = next(self._functions)
        finally:
            self._busy.release()
        return object(), function, 32, 0, 1024

    def unload_module(self, module):
        self.unloads.append(module)

    def launcher_cls(self, src, metadata):
        def launch(grid_0, grid_1, grid_2, stream, function, packed, more, enter, leave, *args):
            name = metadata.name
            if function is None:
                self.wrong.append(f"{name} is launched before it is loaded")
            self.launches.append((threading.current_thread().name, self.get_current_device(), name, function, args))
            self.on_launch(name)

        return launch


@contextmanager
def fake_driver(load_s=0.0):
    """The driver in Triton's place."""
    before, made = active._active, FakeDriver(load_s)
    active.set_active(made)
    try:
        yield made
    finally:
        for kernel in [it for it in gc.get_objects() if isinstance(it, CompiledKernel)]:
            kernel.module = None  # else its end asks a driver to unload it
        active._active = before


def at_once(*runs, limit_s=60.0):
    """Run functions in threads that begin together; raises the first error."""
    start, errors = threading.Barrier(len(runs)), []

    def body(run):
        start.wait(limit_s)
        try:
            run()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=body, args=(run,), name=f"rank{i}", daemon=True) for i, run in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
    assert not any(thread.is_alive() for thread in threads), "a thread waits forever"
    if errors:
        raise errors[0]
