# SPDX-License-Identifier: Apache-2.0
"""Makes the folders beside it: tiny random models of every family that Cadenza reads, saved by
Hugging Face's transformers, with what transformers and PyTorch compute from them in float64.

    python -m pip install torch transformers safetensors
    python tests/end_to_end/data/families/make.py           # makes them again
    python tests/end_to_end/data/families/make.py FOLDER    # logits of the model in a folder

Each folder has what `save_pretrained` writes (float32) and expected.npz:
  logits [vocab]            of the token that follows CONTEXT
  losses, norms [STEPS]     of training on DOCUMENTS, all of them in every step: mean over their
                            targets, global norm of the gradient before it is clipped
  <name of a parameter>     after STEPS updates
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch

from cases import CONTEXT, DOCUMENTS, OPTIMIZER, STEPS, VOCABULARY

FOLDER = Path(__file__).resolve().parent
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
# By name of the folder: the class, and how its config differs from SHAPE.
FAMILIES = {
    "llama2": ("Llama", {}),
    "llama3.1": ("Llama", {"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "llama3.2": ("Llama", {"tie_word_embeddings": True, "rope_scaling": LLAMA3, "head_dim": 8}),
    "llama-yarn": ("Llama", {"rope_scaling": YARN, "max_position_embeddings": 64}),
    "mistral": ("Mistral", {"sliding_window": 12}),
    "mistral-nemo": ("Mistral", {"sliding_window": None, "head_dim": 6}),
    "qwen2.5": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2.5-windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True}),
}


def compute_in_float64():
    """transformers rotates, normalises and adds up in float32, whatever the weights are. Its code
    names that type as torch.float32 and Tensor.float: here they mean float64."""
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)


def make_model(name):
    """Saves a random model in float32, with biases and norms other than 0 and 1."""
    import transformers

    torch.manual_seed(sum(name.encode()))
    kind, changes = FAMILIES[name]
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    with torch.no_grad():
        for key, values in model.named_parameters():
            noise = torch.randn_like(values)
            values.copy_(1 + 0.2 * noise if "norm" in key else 0.2 * noise)
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    # One of them in several files.
    model.save_pretrained(folder, max_shard_size="8KB" if name == "llama2" else "5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)


def open_model(folder):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    return model.double().eval()


def rotate_in_float64(model):
    """Its frequencies were made in float32."""
    model.model.rotary_emb = type(model.model.rotary_emb)(config=model.config)


def logits_after_context(model):
    with torch.no_grad():
        return model(torch.tensor(CONTEXT)[None]).logits[0, -1].numpy()


def loss_of(model):
    """Documents one by one: nothing is padded, and none sees another."""
    total, targets = 0.0, 0
    for document in DOCUMENTS:
        tokens = torch.tensor(document)
        logits = model(tokens[None]).logits[0, :-1]
        total = total + torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="sum")
        targets += len(document) - 1
    return total / targets


def train(model):
    """AdamW with decay of matrices alone, linear warm-up, then a cosine to zero."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    adamw = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": OPTIMIZER["weight_decay"]},
            {"params": vectors, "weight_decay": 0.0},
        ],
        betas=OPTIMIZER["betas"],
        eps=OPTIMIZER["eps"],
    )
    losses, norms = [], []
    for step in range(STEPS):
        warmup = OPTIMIZER["warmup"]
        if step < warmup:
            rate = (step + 1) / warmup
        else:
            rate = 0.5 * (1 + np.cos(np.pi * (step - warmup) / (STEPS - warmup)))
        for group in adamw.param_groups:
            group["lr"] = OPTIMIZER["lr"] * rate
        adamw.zero_grad()
        loss = loss_of(model)
        loss.backward()
        norm = torch.sqrt(sum((p.grad**2).sum() for p in model.parameters()))
        for p in model.parameters():
            p.grad *= min(1.0, OPTIMIZER["clip"] / norm)
        adamw.step()
        losses.append(loss.item())
        norms.append(norm.item())
    return losses, norms


def print_logits(folder):
    """What transformers computes from a folder after CONTEXT, as JSON."""
    model = open_model(folder)
    compute_in_float64()
    rotate_in_float64(model)
    print(json.dumps(logits_after_context(model).tolist()))


def make_all():
    for name in FAMILIES:
        make_model(name)
    models = {name: open_model(FOLDER / name) for name in FAMILIES}
    compute_in_float64()
    for name, model in models.items():
        rotate_in_float64(model)
        logits = logits_after_context(model)
        losses, norms = train(model)
        weights = {key: p.detach().numpy() for key, p in model.named_parameters()}
        np.savez_compressed(
            FOLDER / name / "expected.npz", logits=logits, losses=losses, norms=norms, **weights
        )
        print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")


if __name__ == "__main__":
    if sys.argv[1:]:
        print_logits(sys.argv[1])
    else:
        make_all()
