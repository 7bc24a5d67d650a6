"""The decode job on GPUs."""

from tests.attention.gpu.playing import run_on_gpus  # isort: skip

from argparse import Namespace

from attention.jobs.decode_job import DecodeJob
from attention.jobs.synthetic import exact


def test_every_method_gives_what_float64_gives():
    sizes = {"context": 90, "heads": 4, "kv_heads": 2, "head_dim": 16, "batch": 1}
    job = DecodeJob(Namespace(**sizes, method="all", steps=1, device="cpu"))
    job.prepare(2)
    expected = exact(job.sizes, job.sampled)
    for result in run_on_gpus(lambda comm: job.work(comm, 1), 2):
        assert all(result.same_bits)
        assert max(float((out.double() - expected).abs().max()) for out in result.outs) < 1e-5
