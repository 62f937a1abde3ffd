#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes chat-like rows for measuring the data path: python3 tools/bench/make_chat_rows.py OUT.jsonl ROWS [SEED]

English sentences of Python's own documentation (module pydoc_data.topics), put together into conversations of one to
three turns; the bytes of a row are log-normal with a mean of about 3 KB. The same arguments give the same file with
the same Python.
"""
import json
import math
import random
import re
import sys

from pydoc_data import topics


def sentences():
    text = " ".join(topics.topics[name] for name in sorted(topics.topics))
    found = [s.strip() for s in re.split(r"(?<=[.:!?])\s+", text)]
    return [re.sub(r"\s+", " ", s) for s in found if 20 < len(s) < 400]


def main():
    path, rows = sys.argv[1], int(sys.argv[2])
    draw = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    pool = sentences()

    def words(size):
        parts, length = [], 0
        while length < size:
            part = pool[draw.randrange(len(pool))]
            parts.append(part)
            length += len(part) + 1
        return " ".join(parts)

    with open(path, "w", encoding="utf-8") as out:
        for number in range(rows):
            turns = 1 + draw.randrange(3)
            messages = []
            for _ in range(turns):
                size = math.exp(draw.gauss(6.65, 0.85)) / turns * 2
                messages.append({"role": "user", "content": words(size * 0.3)})
                messages.append({"role": "assistant", "content": words(size * 0.9)})
            out.write(json.dumps({"id": number, "messages": messages}) + "\n")


if __name__ == "__main__":
    main()
