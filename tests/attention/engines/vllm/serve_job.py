"""Answers of vLLM to prompts of several lengths, as JSON: run as a program, since vLLM starts processes of its own.

python -m tests.attention.engines.vllm.serve_job MODEL_FOLDER TENSOR_RANKS CONTEXT_RANKS RESULT [--tokens N] ...
"""

import argparse
import itertools
import json
import os
import time
from pathlib import Path

NUMBERS = itertools.count()
"""Of requests."""

TEXT = (
    "A reduction combines a value of every process into one. When the operation is associative, the order of the "
    "brackets is free, and a tree takes a number of steps that grows with the logarithm of the processes. "
)


def kept_tokens(worker) -> int:
    """Tokens in a rank's cache of the first layer: rows that are not zero, as nothing but new tokens writes there."""
    return int(worker.model_runner.kv_caches[0].any(-1).sum())


def answer(engine, prompts, sampling) -> tuple[list[list[int]], float, list[float]]:
    """The tokens of all prompts, how long it took until each had its first, and how long each step after that took."""
    made = {}
    for prompt in prompts:
        number = str(next(NUMBERS))
        engine.add_request(number, prompt, sampling)
        made[number] = []
    begin, prompts_s, steps_ms = time.perf_counter(), 0.0, []
    while engine.has_unfinished_requests():
        all_begun, start = all(made.values()), time.perf_counter()
        for output in engine.step():
            made[output.request_id] = list(output.outputs[0].token_ids)
        if all_begun:
            steps_ms.append(1e3 * (time.perf_counter() - start))
        else:
            prompts_s = time.perf_counter() - begin
    return list(made.values()), prompts_s, steps_ms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("tensor_ranks", type=int)
    parser.add_argument("context_ranks", type=int)
    parser.add_argument("result", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--lengths", type=int, nargs="+", action="append", help="of the prompts of one call")
    parser.add_argument("--interleave", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=256, help="most tokens of a step: longer prompts come in parts")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--prefix-caching", action="store_true")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--cache-mib", type=int, default=256)
    args = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # for `kept_tokens`, which is sent to the workers
    if args.tensor_ranks > 1:  # vLLM finds cores by NUMA nodes, and wants one for each process
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join(map(str, range(args.tensor_ranks))))
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=args.model,
        dtype=args.dtype,
        enforce_eager=not args.compiled,
        max_model_len=4096,
        max_num_batched_tokens=args.chunk,
        tensor_parallel_size=args.tensor_ranks,
        decode_context_parallel_size=args.context_ranks,
        cp_kv_cache_interleave_size=args.interleave,
        enable_prefix_caching=args.prefix_caching,
        kv_cache_memory_bytes=args.cache_mib << 20,
    )
    tokens = llm.get_tokenizer()(TEXT * 200)["input_ids"]
    sampling = SamplingParams(temperature=0, max_tokens=args.tokens, ignore_eos=True)
    calls = []
    for lengths in args.lengths:
        prompts = [{"prompt_token_ids": tokens[start : start + n]} for start, n in enumerate(lengths)]
        runs = [answer(llm.llm_engine, prompts, sampling) for _ in range(args.repeats)]
        made, prompts_s, steps_ms = zip(*runs, strict=True)
        calls.append({"lengths": lengths, "tokens": made, "prompts_s": prompts_s, "steps_ms": steps_ms})
    config = llm.llm_engine.vllm_config.cache_config
    report = {
        "calls": calls,
        "room_tokens": config.num_gpu_blocks * config.block_size * args.context_ranks,
        "kept_tokens": llm.collective_rpc(kept_tokens) if args.context_ranks > 1 else None,
    }
    args.result.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
