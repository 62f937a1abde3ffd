#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads an exported drafter with SpecForge's DFlashDraftModel and compares what both compute, in fp32 on the CPU.

SpecForge (Apache-2.0) is an independent implementation: it reads config.json and model.safetensors by its own rules,
so this finds a wrong name, key, layer order, rotary base or mask that our own reader would forgive. Checked are

    the tensors: names and shapes of the published format, no others, all bf16,
    the keys of config.json: block_size in both places, layer ids, mask token,
    hidden rows and logits of blocks on a made-up row, at 1e-5 (golden_check draft; max error over rms).

The masks of sliding layers are built here from their definition. For formats zlab, sglang and vllm; a speculators
folder is read by speculators alone. In an environment of its own:

    python3 -m venv V
    V/bin/pip install --no-deps specforge==0.2.0
    V/bin/pip install torch==2.11.0 transformers==5.8.1 safetensors numpy
    V/bin/python tools/golden/check_export.py DRAFT_DIR --golden-check build/ci/test/golden_check/golden_check
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import types

import torch
from safetensors.torch import save_file


def import_specforge():
    """Its package for drafters imports all of them, and with them packages that this needs nothing of."""
    import importlib.util

    spec = importlib.util.find_spec("specforge")
    root = pathlib.Path(spec.submodule_search_locations[0])
    for name, folder in (("specforge.modeling", "modeling"), ("specforge.modeling.draft", "modeling/draft")):
        module = types.ModuleType(name)
        module.__path__ = [str(root / folder)]
        sys.modules[name] = module
    from specforge.modeling.draft.dflash import DFlashDraftModel

    return DFlashDraftModel


def tensors_of(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"]) for name, entry in header.items()}


def expected_tensors(c):
    hidden, inner, size = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    queries, keys = c["num_attention_heads"] * size, c["num_key_value_heads"] * size
    shapes = {"fc.weight": [hidden, len(c["dflash_config"]["target_layer_ids"]) * hidden],
              "hidden_norm.weight": [hidden], "norm.weight": [hidden]}
    for i in range(c["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": [hidden], "post_attention_layernorm": [hidden],
            "self_attn.q_proj": [queries, hidden], "self_attn.k_proj": [keys, hidden],
            "self_attn.v_proj": [keys, hidden], "self_attn.o_proj": [hidden, queries],
            "self_attn.q_norm": [size], "self_attn.k_norm": [size],
            "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner],
        }.items():
            shapes[f"layers.{i}.{name}.weight"] = shape
    return {name: ("BF16", shape) for name, shape in shapes.items()}


def check_files(folder, config):
    found, expected = tensors_of(folder / "model.safetensors"), expected_tensors(config)
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    print(f"{'FAIL' if wrong else 'ok  '}  {len(found)} tensors, names, shapes and dtypes {' '.join(wrong)}")
    nested = config["dflash_config"]
    keys = {
        "block_size in both places": config.get("block_size") == nested.get("block_size"),
        "mask_token_id below vocab_size": 0 <= nested["mask_token_id"] < config["vocab_size"],
        "target_layer_ids below num_target_layers":
            all(0 <= i < config["num_target_layers"] for i in nested["target_layer_ids"]),
        "auxiliary ids one higher": config.get("eagle_aux_hidden_state_layer_ids") in
            (None, [i + 1 for i in nested["target_layer_ids"]]),
        "architectures": config["architectures"] == ["DFlashDraftModel"],
        "layer_types": len(config["layer_types"]) == config["num_hidden_layers"],
    }
    for key, holds in keys.items():
        print(f"{'ok  ' if holds else 'FAIL'}  {key}")
    return not wrong and all(keys.values())


def allowed(config, kind, anchor, block):
    """[1, 1, block, anchor + block]: which keys slot k at position anchor + k sees."""
    query = anchor + torch.arange(block)[:, None]
    key = torch.arange(anchor + block)[None, :]
    causal = config.get("is_causal")
    causal = kind == "sliding_attention" if causal is None else causal
    seen = key <= query if causal else torch.ones(block, anchor + block, dtype=torch.bool)
    seen = seen | (key < anchor)
    if kind == "sliding_attention":
        seen = seen & (query - key < config["sliding_window"]) & (key - query < config["sliding_window"])
    return seen[None, None]


@torch.no_grad()
def reference(model, config, num_tokens, anchors, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    nested, block = config["dflash_config"], config["block_size"]

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    embed, head = normal(vocab, hidden), normal(vocab, hidden) / hidden**0.5
    tokens = torch.randint(vocab, (num_tokens,), generator=generator)
    features = normal(num_tokens, len(nested["target_layer_ids"]) * hidden)
    rows = []
    for anchor in anchors:
        ids = torch.full((block,), nested["mask_token_id"])
        ids[0] = tokens[anchor]
        rows.append(model(
            position_ids=torch.arange(anchor + block)[None],
            attention_mask={kind: allowed(config, kind, anchor, block) for kind in set(config["layer_types"])},
            noise_embedding=embed[ids][None],
            target_hidden=features[None, :anchor],
        )[0])
    out = torch.stack(rows)
    return {"embed_tokens.weight": embed, "lm_head.weight": head, "input_ids": tokens, "features": features,
            "anchors": torch.tensor(anchors), "hidden": out.contiguous(), "logits": (out @ head.T).contiguous()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("draft", type=pathlib.Path)
    parser.add_argument("--golden-check", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    config = json.loads((args.draft / "config.json").read_text())
    good = check_files(args.draft, config)

    model, info = import_specforge().from_pretrained(
        args.draft, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    model.eval()
    loose = [key for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]]
    print(f"{'FAIL' if loose else 'ok  '}  SpecForge's loader takes every weight {' '.join(map(str, loose))}")
    base = model.config.rope_parameters["rope_theta"]
    print(f"{'ok  ' if base == config['rope_theta'] else 'FAIL'}  rotary base {base}")
    good = good and not loose and base == config["rope_theta"]

    last = args.tokens - 1
    anchors = sorted({1, min(7, last), args.tokens // 2, last - config["block_size"], last})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "expected.safetensors"
        save_file(reference(model, config, args.tokens, anchors, args.seed), path)
        result = subprocess.run([args.golden_check, "draft", args.draft, path], check=False)
    sys.exit(0 if good and result.returncode == 0 else 1)


if __name__ == "__main__":
    main()
