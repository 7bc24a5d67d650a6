"""A Llama with grouped queries written as one with a single key head: the same function, in other weights.

Decode context parallelism needs fewer key heads than processes, and query heads that the processes divide. The key
heads of each layer lie side by side as one of kv_heads * d dims; a query head is zero outside of its own part, and so
is its part of the output projection. Heads of zeros fill up the number. Keys and values take as much memory as before.

    python -m tests.attention.engines.vllm.multi_query MODEL_FOLDER NEW_FOLDER
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PROCESSES = 2
"""Between how many the query heads are to be divided."""


def as_multi_query(source: Path, target: Path) -> None:
    """Write the model of a folder of Hugging Face's layout to another folder, with one key head."""
    config = json.loads((source / "config.json").read_text())
    heads, kv_heads, d = (config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    rope = config["rope_parameters"]
    if config["model_type"] != "llama" or rope["rope_type"] != "default" or config["attention_bias"]:
        raise ValueError(f"{source}: expected a Llama with plain rotary positions and without biases")
    # transformers wants heads to divide the hidden size, though head_dim is given
    all_heads = next(n for n in range(heads, heads * heads) if n % PROCESSES == config["hidden_size"] % n == 0)
    tensors = load_file(source / "model.safetensors")
    for name in [name for name in tensors if name.endswith("self_attn.q_proj.weight")]:
        q, k, o = (tensors[name.replace("q_proj", x)] for x in ("q_proj", "k_proj", "o_proj"))
        hidden = q.shape[1]
        wide_q = q.new_zeros(all_heads, 2, kv_heads, d // 2, hidden)  # rotation pairs one half with the other
        wide_o = o.new_zeros(hidden, all_heads, kv_heads, d)
        for head in range(heads):
            group = head // (heads // kv_heads)
            # scores are scaled by the root of the wide head's dims
            wide_q[head, :, group] = q.view(heads, 2, d // 2, hidden)[head] * math.sqrt(kv_heads)
            wide_o[:, head, group] = o.view(hidden, heads, d)[:, head]
        tensors[name] = wide_q.view(-1, hidden)
        tensors[name.replace("q_proj", "o_proj")] = wide_o.view(hidden, -1)
        halves = k.view(kv_heads, 2, d // 2, hidden).transpose(0, 1)
        tensors[name.replace("q_proj", "k_proj")] = halves.reshape(-1, hidden)
    target.mkdir(parents=True, exist_ok=True)
    save_file({name: x.contiguous() for name, x in tensors.items()}, target / "model.safetensors", {"format": "pt"})
    for path in source.glob("*.json*"):
        shutil.copy(path, target)
    rope = wide_rotation(rope["rope_theta"], d, kv_heads, config["max_position_embeddings"])
    config |= {"num_attention_heads": all_heads, "num_key_value_heads": 1, "head_dim": kv_heads * d}
    (target / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}, indent=2))


def wide_rotation(theta: float, d: int, kv_heads: int, positions: int) -> dict[str, object]:
    """Return rope parameters by which each part of the wide key head turns as its own head did."""
    own = theta ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    wide = theta ** (torch.arange(0, kv_heads * d, 2, dtype=torch.float64) / (kv_heads * d))
    factors = (own.repeat(kv_heads) / wide).tolist()
    return {
        "rope_type": "longrope",  # the kind with a factor for each frequency
        "rope_theta": theta,
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "original_max_position_embeddings": positions,
    }


if __name__ == "__main__":
    as_multi_query(Path(sys.argv[1]), Path(sys.argv[2]))
