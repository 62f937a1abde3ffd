#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes cases of added tokens that ask for what stands beside them.

    make_added_token_cases.py

Writes to test/golden/text: added-tokens.json, a tokenizer with a token per byte and added tokens of
every kind, and added-tokens.jsonl, random texts of those tokens, spaces and letters with the ids
that tokenizers 0.23.3 (needed) gives. Run from the root of the project.
"""
import json
import random
from pathlib import Path

from tokenizers import Tokenizer

from make_tokenizers import LETTERS, added_token, file_of

OUT = Path("test/golden/text")
NUM_RANDOM = 400


def added_tokens():
    tokens = []

    def add(content, special=False, **flags):
        token = added_token(256 + len(tokens), content, special)
        tokens.append({**token, **flags})

    add("<plain>")
    add("<l>", lstrip=True)
    add("<r>", rstrip=True)
    add("<lr>", lstrip=True, rstrip=True, special=True)
    add("<w>", single_word=True)
    add("word", single_word=True)
    add("wordy", lstrip=True)
    add("or", rstrip=True)
    add("éx", single_word=True, normalized=True)
    add("<nl>", normalized=True, lstrip=True)
    add("<nr>", normalized=True, rstrip=True)
    add("nn", normalized=True)
    add("nnn", normalized=True, single_word=True)
    add(" x", rstrip=True)
    add("  ")
    return tokens


def tokenizer_json():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {letter: byte for byte, letter in enumerate(LETTERS)}, "merges": []}
    return file_of(added_tokens(), {"type": "NFC"}, byte_level, None, byte_level, model)


def texts():
    contents = [token["content"] for token in added_tokens()]
    # White space of one to three bytes, word characters of several kinds, and what is neither.
    spaces = [" ", "  ", "\n", "\t", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028"]
    words = ["a", "Z", "0", "_", "é", "e\u0301", "\u0301", "\u4e2d", "\u0660", "\u200d", "\u24b6",
             "\u203f", "\u1c89", "\U0001e4d0"]
    others = [".", "-", "\u200b", "\U0001f600", "\u180e", "\ufeff", "²", "\u2460", "<", ">"]
    for content in contents:
        for beside in spaces + words + others:
            yield beside + content
            yield content + beside
            yield f"{beside} {content} {beside}"
    random.seed(1)
    for _ in range(NUM_RANDOM):
        yield "".join(random.choice(random.choice([contents, spaces, words, others, contents]))
                      for _ in range(random.randint(1, 12)))


def main():
    text = json.dumps(tokenizer_json(), ensure_ascii=False, separators=(",", ":"))
    tokenizer = Tokenizer.from_str(text)
    (OUT / "added-tokens.json").write_bytes(text.encode() + b"\n")
    lines = []
    for case in texts():
        ids = tokenizer.encode(case, add_special_tokens=False).ids
        lines.append(json.dumps({"text": case, "ids": ids}, ensure_ascii=False) + "\n")
    (OUT / "added-tokens.jsonl").write_bytes("".join(lines).encode())
    print(f"{len(lines)} cases")


if __name__ == "__main__":
    main()
