"""All checks of one rank count in one launch: `smollm2_job.py REFERENCE METHOD=TOKENS ...`, under mpirun or alone.

REFERENCE is a safetensors file with what single-process transformers made: `tokens` and `logits`, and its inputs
`input_ids` and `attention_mask`. Prints one JSON object per method.
"""

import json
import sys
from types import SimpleNamespace

import torch
from safetensors.torch import load_file

from attention.jobs.generate import GenerateJob, compare
from attention.jobs.launch import run
from attention.jobs.models import find_model, load_model


class SmolLM2Job:
    name = "smollm2"

    def __init__(self, reference, wanted):
        self.reference = load_file(reference)
        self.wanted = [(method, int(count)) for method, count in (text.split("=") for text in wanted)]

    def prepare(self, ranks):
        self.model = load_model(find_model("smollm2"))

    def work(self, comm, cpu_threads):
        results = []
        for method, count in self.wanted:
            options = SimpleNamespace(method=method, max_new_tokens=count, verify=True)
            job = GenerateJob(options)
            job.model = self.model
            job.inputs = {name: self.reference[name] for name in ("input_ids", "attention_mask")}
            made = job.work(comm, cpu_threads)
            same, difference = compare(
                made.tokens, made.logits, self.reference["tokens"][:count], self.reference["logits"][:count]
            )
            everywhere = [int(record[0]) for record in comm.allgather_bytes(record_of(same))]
            times = {"prefill_s": round(made.prefill_s, 2), "decode_s": round(made.decode_s, 2)}
            results.append({"method": method, "same_tokens": everywhere, "difference": difference, **times})
        return results

    def report(self, results):
        for result in results:
            print(json.dumps(result))
        return 0


def record_of(same):
    return torch.tensor([same], dtype=torch.uint8).numpy()


if __name__ == "__main__":
    sys.exit(run(SmolLM2Job(sys.argv[1], sys.argv[2:]), None))
