#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts the tokenizers of SmolLM2, Qwen3 and gpt-oss down to what the reference cases need.

    make_tokenizer_cuts.py FULL_DIR CASES_DIR

FULL_DIR holds NAME.json (make_tokenizers.py), CASES_DIR the reference cases tokenizer-NAME.jsonl,
chat-FAMILY.jsonl and text-rows.jsonl. Writes test/golden/text/NAME-cut.json, and tokenizer-NAME.jsonl
with the cases that are not too long. Run from the root of the project; needs
tokenizers==0.23.3, which confirms that every case gives the same ids with the cut file.

A cut keeps the ids of the tokens in the cases, of the single bytes, and of everything that these
are merged from. No merge that happens in a case is lost: what it makes is part of a token in the
result. A merge that is left out never happened, so the lowest rank among the others is the same. Where a
token has several merges, all tokens are kept that are part of a kept one.
"""
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

LONGEST_LINE = 25_000
OUT = Path("test/golden/text")
CHAT_FAMILIES = {"smollm2": ["smollm2"], "qwen3": ["qwen3", "qwen3-2507"], "gpt-oss": ["gpt-oss"]}


def read_lines(path):
    return path.read_bytes().decode().split("\n")[:-1]


def parts_of(merge):
    return merge.split(" ") if isinstance(merge, str) else merge


def cut(full, used_ids):
    vocab = full["model"]["vocab"]
    names = {id_: name for name, id_ in vocab.items()}
    made_by = {"".join(parts_of(merge)): merge for merge in full["model"]["merges"]}
    one_merge_each = len(made_by) == len(full["model"]["merges"])
    added = {token["content"] for token in full["added_tokens"]}
    keep = {name for name in names.values() if len(name) == 1 or name in added}
    open_names = [names[id_] for id_ in used_ids if id_ in names]
    while open_names:
        name = open_names.pop()
        if name in keep:
            continue
        keep.add(name)
        if one_merge_each:
            open_names += parts_of(made_by[name])
        else:
            open_names += [name[i:j] for i in range(len(name))
                           for j in range(i + 1, len(name) + 1) if name[i:j] in vocab]
    model = dict(full["model"])
    model["vocab"] = {n: id_ for n, id_ in full["model"]["vocab"].items() if n in keep}
    # `tokenizers` numbers added tokens from the size of the vocabulary, unless they are in it.
    model["vocab"] |= {token["content"]: token["id"] for token in full["added_tokens"]}
    model["merges"] = [m for m in full["model"]["merges"]
                       if "".join(parts_of(m)) in keep and all(p in keep for p in parts_of(m))]
    return {**full, "model": model}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    full_dir, cases_dir = map(Path, sys.argv[1:])
    for name, families in CHAT_FAMILIES.items():
        full = json.loads((full_dir / f"{name}.json").read_text(encoding="utf-8"))
        token_file = cases_dir / f"tokenizer-{name}.jsonl"
        lines = [line for line in (read_lines(token_file) if token_file.exists() else [])
                 if len(line.encode()) <= LONGEST_LINE]
        token_cases = [json.loads(line) for line in lines]
        chat_cases = [json.loads(line) for family in families
                      for line in read_lines(cases_dir / f"chat-{family}.jsonl")]
        row_cases = [case for case in map(json.loads, read_lines(cases_dir / "text-rows.jsonl"))
                     if case["family"] == name]
        cases = [case for case in token_cases + chat_cases + row_cases if case.get("ids")]
        small = cut(full, {id_ for case in cases for id_ in case["ids"]})
        text = json.dumps(small, ensure_ascii=False, separators=(",", ":"))
        tokenizer = Tokenizer.from_str(text)
        for case in cases:
            if case.get("text") is not None:
                ids = tokenizer.encode(case["text"], add_special_tokens=False).ids
                if ids != case["ids"]:
                    sys.exit(f"{name}: other ids for {case['text']!r}")
        (OUT / f"{name}-cut.json").write_bytes(text.encode() + b"\n")
        if lines:
            (OUT / f"tokenizer-{name}.jsonl").write_bytes("\n".join(lines).encode() + b"\n")
        print(f"{name}: {len(small['model']['vocab'])} tokens, {len(small['model']['merges'])} "
              f"merges, {len(text.encode())} bytes; {len(lines)} token cases, "
              f"{len(chat_cases)} chat cases, {len(row_cases)} rows of finished text")


if __name__ == "__main__":
    main()
