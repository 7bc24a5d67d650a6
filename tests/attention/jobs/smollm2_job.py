"""All checks of one rank count in one launch: `smollm2_job.py REFERENCE METHOD ...`, under mpirun or alone.

REFERENCE is a safetensors file with what single-process transformers made: `tokens` and `logits`, and its inputs
`input_ids` and `attention_mask`. The text is generated once per method, as rows of one batch, each of which goes its
own way through attention: the rest of the model, most of the work, runs once. Prints one JSON object per method.
"""

import json
import sys

import numpy as np
import torch
from safetensors.torch import load_file

from attention.huggingface.generation import METHODS, shard_generation
from attention.jobs.generate_job import compare
from attention.jobs.job_launch import run
from attention.jobs.models import find_model, load_model


class SmolLM2Job:
    name = "smollm2"

    def __init__(self, reference, methods):
        self.reference = load_file(reference)
        self.ways = [METHODS[method] for method in methods]
        self.methods = methods

    def prepare(self, ranks):
        self.model = load_model(find_model("smollm2"))

    def work(self, comm, cpu_threads):
        torch.set_num_threads(cpu_threads)
        inputs = {name: self.reference[name].repeat(len(self.ways), 1) for name in ("input_ids", "attention_mask")}
        prompt_tokens, count = inputs["input_ids"].shape[1], len(self.reference["tokens"])
        METHODS["tree"] = self.attend
        with shard_generation(self.model, comm) as cache:
            made = self.model.generate(
                **inputs,
                past_key_values=cache,
                max_new_tokens=count,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        logits = torch.stack(made.logits, 1)
        return [
            self.compare(comm, method, made.sequences[row, prompt_tokens:], logits[row])
            for row, method in enumerate(self.methods)
        ]

    def attend(self, q, k, v, comm, *, q_positions=None, kv_mask=None, **options):
        """Row r of the batch by method r; a single query is given no positions."""
        assert kv_mask is None, "no token of the prompt is padding"
        rows = [slice(row, row + 1) for row in range(len(q))]
        positions = [None if q_positions is None else q_positions.expand(len(q), -1)[row] for row in rows]
        outs = [
            way(q[row], k[row], v[row], comm, q_positions=where, **options)
            for way, row, where in zip(self.ways, rows, positions, strict=True)
        ]
        return torch.cat(outs)

    def compare(self, comm, method, tokens, logits):
        same, difference = compare(tokens, logits, self.reference["tokens"], self.reference["logits"])
        everywhere = [int(record[0]) for record in comm.allgather_bytes(np.array([same], np.uint8))]
        return {"method": method, "same_tokens": everywhere, "difference": difference}

    def report(self, results):
        for result in results:
            print(json.dumps(result))
        return 0


if __name__ == "__main__":
    sys.exit(run(SmolLM2Job(sys.argv[1], sys.argv[2:]), None))
