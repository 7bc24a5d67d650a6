"""Public names for authors of operators and kernels."""

import subprocess
import sys

from topocomm.extend import prepare_for_threads


def test_importing_it_needs_neither_torch_nor_triton():
    code = "import sys, topocomm.extend as e; assert all(map(e.__dict__.get, e.__all__)); print(*sys.modules)"
    job = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "triton", "numba"} & set(job.stdout.split())


def test_what_cuda_reads_is_set_only_where_it_is_not():
    environment = {"CUDA_MODULE_LOADING": "LAZY"}
    prepare_for_threads(environment)
    assert environment == {"CUDA_MODULE_LOADING": "LAZY", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
