# SPDX-License-Identifier: Apache-2.0
"""What docs/bring_your_own.md says a user has: a folder of Hugging Face's with a small random model
and its tokenizer, and texts in JSON Lines."""

import json
from pathlib import Path

import numpy as np
from tokenizers import ByteLevelBPETokenizer

END = "<|endoftext|>"
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


def parameters():
    width, ffn = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    keys = width // SHAPE["num_attention_heads"] * SHAPE["num_key_value_heads"]
    shapes = {
        "model.embed_tokens.weight": (SHAPE["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    for layer in range(SHAPE["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": (width, width),
            prefix + "self_attn.k_proj.weight": (keys, width),
            prefix + "self_attn.v_proj.weight": (keys, width),
            prefix + "self_attn.o_proj.weight": (width, width),
            prefix + "mlp.gate_proj.weight": (ffn, width),
            prefix + "mlp.up_proj.weight": (ffn, width),
            prefix + "mlp.down_proj.weight": (width, ffn),
            prefix + "input_layernorm.weight": (width,),
            prefix + "post_attention_layernorm.weight": (width,),
        }
    random = np.random.default_rng(1)
    return {
        name: np.ones(shape) if len(shape) == 1 else 0.02 * random.standard_normal(shape)
        for name, shape in shapes.items()
    }


def write_safetensors(path, tensors, kind="F32"):
    """By name, arrays, as elements of F32 or F16."""
    header, data = {}, b""
    for name, values in tensors.items():
        part = values.astype({"F32": "<f4", "F16": "<f2"}[kind]).tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(values.shape),
            "data_offsets": [len(data), len(data) + len(part)],
        }
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def make(folder, texts):
    """folder/my-model and folder/articles.jsonl"""
    model = Path(folder) / "my-model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SHAPE))
    write_safetensors(model / "model.safetensors", parameters())
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        texts, vocab_size=SHAPE["vocab_size"], special_tokens=[END], show_progress=False
    )
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    lines = [json.dumps({"text": text}) for text in texts]
    (Path(folder) / "articles.jsonl").write_text("\n".join(lines) + "\n")
