"""`python -m attention generate`: a language model writes text from a key-value cache sharded over ranks.

Standard output holds the generated text alone; progress, the plan, speeds and the check go to standard error.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention.jobs.cache_summary import RankCache, cache_lines, gather_caches
from attention.jobs.decode_job import METHODS, explain_merge
from attention.jobs.job_launch import (
    BEGAN_S,
    OK,
    WORK_FAILED,
    InputError,
    add_device,
    check_device,
    device_of_rank,
    positive,
    say,
)
from attention.jobs.models import add_weights, find_model, load, load_model, model_slices, whole_model
from attention.jobs.progress import Meter

if TYPE_CHECKING:
    import torch

    from attention.huggingface.weights.sharded_weights import ShardedWeights
    from attention.jobs.step_profile import StepTimes
    from topocomm import Communicator

LOGIT_LIMIT = 1e-3
"""Largest difference of a logit from single-process transformers that `--verify` accepts, in float32."""


@dataclass(frozen=True)
class Generated:
    """What one rank brings back."""

    tokens: torch.Tensor
    """The new tokens [n], int64."""
    logits: torch.Tensor | None
    """The scores that each was chosen from [n, vocabulary], float32; None unless they are wanted."""
    plan: str
    prefill_s: float
    decode_s: float
    caches: list[RankCache]
    """Of every rank, in rank order."""
    weights: ShardedWeights | None
    step_times: StepTimes | None
    """With `--profile`, where there is a token after the second."""


def add_arguments(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("generate", help="generate text with a sharded cache", description=__doc__)
    parser.add_argument(
        "--model", required=True, help="smollm2, or a directory with config.json, safetensors, tokenizer.json"
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="the prompt; of a user, where the model has a chat template")
    source.add_argument("--prompt-file", metavar="FILE", type=Path, help="a UTF-8 file with the prompt")
    parser.add_argument("--max-new-tokens", type=positive, default=64, help="tokens to generate (default 64)")
    parser.add_argument(
        "--method",
        choices=METHODS,
        default="tree",
        help="how partial results meet: one planned reduction (default), keys and values in a ring, three all-reduces",
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare tokens and logits with single-process transformers"
    )
    parser.add_argument("--profile", action="store_true", help="show where the time of each rank's decode steps goes")
    add_weights(parser)
    add_device(parser)
    parser.add_argument("--ranks", type=positive, help="run on this many threads, without mpirun")
    parser.set_defaults(job=GenerateJob)


class GenerateJob:
    """The job; see `attention.jobs.job_launch.Job`."""

    name = "attention generate"

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.path = Path()
        self.model: Any = None
        """Whole, for all ranks of this process; None where each rank reads its slices."""
        self.tokenizer: Any = None
        self.inputs: dict[str, torch.Tensor] = {}
        self._bringing = threading.Lock()

    def prepare(self, ranks: int) -> None:
        """Check the prompt against the model before its weights are loaded.

        Raises:
            InputError: The prompt, the model or the number of ranks cannot be used, or there is no GPU to run on.
            SetupError: The model is not on this machine.
        """
        if self.options.profile and self.options.device != "cpu":
            raise InputError("--profile reads the host's clock, which tells nothing of a GPU; use --device cpu")
        if self.options.profile and self.options.method != "tree":
            raise InputError(f"--profile tells the parts of --method tree apart, not those of {self.options.method}")
        text = self._prompt()
        check_device(self.options.device, ranks)
        path = self.path = find_model(self.options.model)  # before transformers is imported, for seconds
        from attention.huggingface.hf_layers import layer_windows

        self.tokenizer = load("tokenizer", path)
        config = load("configuration", path)
        try:
            layer_windows(config)
        except ValueError as error:
            raise InputError(str(error)) from error
        self.inputs = encode(self.tokenizer, text)
        positions = getattr(config, "max_position_embeddings", None)
        prompt_tokens, new_tokens = self.inputs["input_ids"].shape[1], self.options.max_new_tokens
        if positions is not None and prompt_tokens + new_tokens > positions:
            raise InputError(
                f"{prompt_tokens:,} prompt tokens and {new_tokens:,} new ones make {prompt_tokens + new_tokens:,}, but "
                f"the model has {positions:,} positions; shorten the prompt or lower --max-new-tokens"
            )
        self.model = whole_model(path, self.options.weights, ranks)

    def work(self, comm: Communicator, cpu_threads: int) -> Generated:
        """Generate on this rank; all ranks return the same tokens."""
        import torch

        from attention.huggingface.call_arguments import CACHE
        from attention.huggingface.generation import shard_generation
        from attention.jobs.step_profile import StepTimes, profiled

        torch.set_num_threads(cpu_threads)
        model = self._model_of(comm)
        prompt_tokens = self.inputs["input_ids"].shape[1]
        if comm.rank == 0:
            self._say_what_comes(prompt_tokens, comm.size)
        with (
            profiled() if self.options.profile else nullcontext() as profile,
            shard_generation(model, comm, method=self.options.method) as cache,
            Meter(model, self.options.max_new_tokens, show=comm.rank == 0, profile=profile) as meter,
        ):
            output = self._generate(model, streamer=meter, **{CACHE: cache})
        plan, config = f"{self.options.method} attention on {comm.size} ranks", model.config
        if self.options.method == "tree":
            widths = (getattr(config, name, None) for name in ("kv_lora_rank", "head_dim"))
            width = next(filter(None, widths), config.hidden_size // config.num_attention_heads)
            plan = explain_merge(comm, 1, config.num_attention_heads, width).summary()
        return Generated(
            tokens=output.sequences[0, prompt_tokens:].cpu(),
            logits=torch.cat(output.logits).cpu() if output.logits else None,
            plan=plan,
            prefill_s=meter.first_token_s,
            decode_s=meter.other_tokens_s,
            caches=gather_caches(cache, comm),
            weights=cache.weights,
            step_times=StepTimes.gathered(profile, comm, len(cache)) if profile and profile.tokens else None,
        )

    def report(self, result: Generated) -> int:
        """Print the text, what it took, and the check."""
        print(self.tokenizer.decode(result.tokens, skip_special_tokens=True), flush=True)
        prompt_tokens, more = self.inputs["input_ids"].shape[1], len(result.tokens) - 1
        say(f"plan: {result.plan}")
        say(
            f"prefill: {prompt_tokens:,} tokens in {result.prefill_s:.2f} s, "
            f"{prompt_tokens / result.prefill_s:.1f} tokens/s"
        )
        if more:
            say(f"decode: {more} tokens in {result.decode_s:.2f} s, {more / result.decode_s:.2f} tokens/s")
        say("\n".join(cache_lines(result.caches)))
        if result.weights is not None:
            say(f"weights: {result.weights.held_bytes:,} of {result.weights.whole_bytes:,} bytes on rank 0")
        if self.options.profile:
            lines = ["profile: too few tokens"] if result.step_times is None else result.step_times.lines()
            say("\n".join(lines))
        return self._verify(result) if self.options.verify else OK

    def _model_of(self, comm: Communicator) -> Any:
        """The model on this rank's device, and the prompt; ranks on threads share whole ones, the first brings them."""
        import torch

        device = device_of_rank(comm, self.options.device, shared=True)
        model = model_slices(self.path, comm, device) if self.model is None else self.model
        with self._bringing:
            if model.device != device:
                model.to(device)
            self.inputs = {name: x.to(device) for name, x in self.inputs.items()}
            if device.type == "cuda":  # the others have streams of their own
                torch.cuda.synchronize(device)
        return model

    def _say_what_comes(self, prompt_tokens: int, ranks: int) -> None:
        """Say what has taken time until now, which speeds leave out, and who computes what from here on."""
        from attention.huggingface.split_pass import LEAST_TOKENS

        say(f"set-up: {time.perf_counter() - BEGAN_S:.1f} s for imports, the model and {ranks} ranks")
        if ranks > 1 and prompt_tokens >= LEAST_TOKENS * ranks:
            part = "a part of the tokens" if self.options.weights == "replicated" else "all with its part of the model"
            say(f"prefill: {prompt_tokens:,} tokens; each of {ranks} ranks computes {part}")

    def _prompt(self) -> str:
        text = self.options.prompt
        if text is None:
            try:
                text = self.options.prompt_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "not UTF-8; expected that, as by `iconv -t UTF-8`"
                raise InputError(f"--prompt-file {self.options.prompt_file}: cannot be read: {reason}") from error
        if not text.strip():
            raise InputError("the prompt is empty; give --prompt TEXT or --prompt-file FILE with some text")
        return str(text)

    def _generate(self, model: Any, **more: Any) -> Any:
        return model.generate(
            **self.inputs,
            **more,
            max_new_tokens=self.options.max_new_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            return_dict_in_generate=True,
            output_logits=self.options.verify,
        )

    def _verify(self, result: Generated) -> int:
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        say("check: single-process transformers generates the same ...")
        began_s = time.perf_counter()
        model = load_model(self.path) if self.model is None else self.model
        expected = self._generate(model)
        tokens = expected.sequences[0, self.inputs["input_ids"].shape[1] :].cpu()
        assert result.logits is not None, "output_logits follows --verify"
        same, difference = compare(result.tokens, result.logits, tokens, torch.cat(expected.logits).cpu())
        passed = same == len(tokens) == len(result.tokens) and difference <= LOGIT_LIMIT
        verdict, took_s = "passed" if passed else "FAILED", time.perf_counter() - began_s
        steps = f"all {len(tokens)} steps" if same == len(tokens) else f"the first {same + 1} steps"
        say(
            f"check {verdict}: {same} of {len(tokens)} tokens are those of single-process transformers "
            f"{transformers.__version__} ({model.config._attn_implementation}, {took_s:.1f} s); "
            f"max |logit difference| {difference:.2e} over {steps} (limit {LOGIT_LIMIT:g})"
        )
        return OK if passed else WORK_FAILED


def encode(tokenizer: Any, text: str) -> dict[str, torch.Tensor]:
    """Return the model's inputs [1, tokens] for a prompt: as a user's message where the tokenizer has a chat template.

    Raises:
        InputError: The prompt has no token.
    """
    if tokenizer.chat_template:
        message = [{"role": "user", "content": text.strip()}]
        inputs = tokenizer.apply_chat_template(
            message, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
    else:
        inputs = tokenizer(text, return_tensors="pt")
    if inputs["input_ids"].shape[1] == 0:
        raise InputError("the prompt has no token for this model's tokenizer")
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


def compare(
    tokens: torch.Tensor, logits: torch.Tensor, expected_tokens: torch.Tensor, expected_logits: torch.Tensor
) -> tuple[int, float]:
    """Return how many leading tokens agree, and the largest |logit difference| over all steps that saw the same tokens.

    After the first token that differs the two runs continue different texts, so later logits say nothing.
    Tokens are int64 [n], logits [n, vocabulary]; expected ones may be more or fewer.
    """
    steps = min(len(tokens), len(expected_tokens))
    differs = (tokens[:steps] != expected_tokens[:steps]).nonzero()
    same = int(differs[0]) if len(differs) else steps
    compared = min(same + 1, steps)
    return same, float((logits[:compared] - expected_logits[:compared]).abs().max())
