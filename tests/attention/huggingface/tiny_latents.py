"""Tiny random models whose layers keep latents, with experts and scales as theirs."""

from tests.attention.huggingface import tiny_llama
from tests.once import once

RANK, NOPE, ROTARY, VALUE, HEADS = 16, 8, 4, 6, 4
SIZES = {
    "num_key_value_heads": HEADS,
    "kv_lora_rank": RANK,
    "q_lora_rank": 12,
    "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROTARY,
    "v_head_dim": VALUE,
    "hidden_size": 32,
    "max_position_embeddings": 256,
}
MOE = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 8.0,
    "mscale": 0.7,
    "mscale_all_dim": 1.4,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "DeepseekV3": MOE | {"rope_parameters": YARN},
    "DeepseekV2": MOE | {"q_lora_rank": None},
    "DeepseekV3, halves": MOE | {"rope_interleave": False},
    "Glm4MoeLite": MOE,
    "LongcatFlash": {
        "head_dim": ROTARY,
        "num_layers": 1,
        "num_hidden_layers": 2,
        "ffn_hidden_size": 48,
        "expert_ffn_hidden_size": 16,
    }
    | {"zero_expert_num": 2, "moe_topk": 2, "n_routed_experts": 4},
    "MiniCPM3": {},
    "Mistral4": MOE,
    "Youtu": {},
}


@once
def build(family="DeepseekV3", **changes):
    return tiny_llama.build(family.partition(",")[0], **{**SIZES, **FAMILIES[family], **changes})
