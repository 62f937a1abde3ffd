#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes test/golden/tokenizer-512/tokenizer.json, the tokenizer of the tiny targets (V 512).

A byte-level BPE of SmolLM2's kind: the three ChatML marks (ids 0-2), the 256 bytes (3-258) and 252
merges (259-510), trained on the text below. 511 ids, so that row 511 of an embedding of 512 is free
for a drafter's mask token. The result depends on this file alone. Run from the root of the project.
"""
import collections
import json
import re
from pathlib import Path

OUT = Path("test/golden/tokenizer-512/tokenizer.json")
MARKS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NUM_IDS = 511

TEXT = '''
You are a helpful assistant. The user asks a question, and you answer it in a few plain sentences.
What is the capital of France? The capital of France is Paris, a city on the river Seine.
Write a function that returns the sum of the numbers in a list.
Here is a function that does this. It takes a list of integers and returns their sum:

def sum_of(numbers):
    """Returns the sum of the numbers."""
    total = 0
    for number in numbers:
        total += number
    return total

It goes through the list once, so the time it takes grows with the length of the list. If the list
is empty, the result is 0. You can test it with print(sum_of([1, 2, 3])), which should give 6.

How do I make a cup of tea? First, boil some water. Then put a tea bag into the cup, pour the hot
water over it and wait for three to five minutes. Take the bag out, and add milk or sugar if you
like. That's all there is to it; there's no need to hurry.

Can you explain why the sky is blue? Light from the sun is a mixture of all colors. When it passes
through the air, the small molecules scatter blue light more strongly than red light. So blue light
comes to our eyes from every direction, and the sky looks blue. In the evening the light has to go
a longer way through the air, most of the blue is gone, and what we see is red and orange.

from typing import List


def has_close_elements(numbers: List[float], threshold: float) -> bool:
    """ Check if in given list of numbers, are any two numbers closer to each other than
    given threshold.
    """
    for idx, elem in enumerate(numbers):
        for idx2, elem2 in enumerate(numbers):
            if idx != idx2:
                distance = abs(elem - elem2)
                if distance < threshold:
                    return True

    return False


class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

def is_prime(n):
    if n < 2:
        return False
    for i in range(2, int(n ** 0.5) + 1):
        if n % i == 0:
            return False
    return True

Tell me a short story about a dog. Once upon a time there was a dog who lived with an old man in a
small house by the sea. Every morning they would walk along the beach together. One day the man was
ill and could not get up, so the dog ran to the village and barked until the people followed him.
They found the man and helped him, and from that day on everyone in the village knew the dog's name.

What are the steps to solve this problem? We have to find a number x such that 2 * x + 3 = 11. We
take 3 from both sides, which leaves 2 * x = 8. Then we divide by 2, and the answer is x = 4. I don't
think that it can be done in fewer steps, but we've checked the result and it's correct.
Please give me three words that mean the same as "happy". Three such words are glad, pleased and
joyful. Would you like to know more of them? Yes, thank you, that would be great!
'''

# What Digits and ByteLevel cut ASCII text into.
PIECES = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+|\s+(?=[0-9])"
                    r"|\s+(?!\S)|\s+")


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


def train(text, letters, num_merges):
    """Merges the most frequent pair again and again; of equals the first in the alphabet."""
    words = collections.Counter(tuple(letters[byte] for byte in piece.encode())
                                for piece in PIECES.findall(text))
    merges = []
    while len(merges) < num_merges:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(list(best))
        merged = collections.Counter()
        for word, count in words.items():
            out, i = [], 0
            while i < len(word):
                step = 2 if word[i:i + 2] == best else 1
                out.append("".join(word[i:i + step]))
                i += step
            merged[tuple(out)] += count
        words = merged
    return merges


def main():
    letters = byte_letters()
    merges = train(TEXT, letters, NUM_IDS - len(MARKS) - len(letters))
    names = MARKS + letters + ["".join(merge) for merge in merges]
    vocab = {name: id_ for id_, name in enumerate(names)}
    assert len(vocab) == len(names) == NUM_IDS
    added = [{"id": id_, "content": mark, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for id_, mark in enumerate(MARKS)]
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": vocab, "merges": merges},
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":"))
    OUT.write_bytes(text.encode() + b"\n")
    print(f"{OUT}: {len(names)} ids, {len(merges)} merges, {len(text.encode())} bytes")


if __name__ == "__main__":
    main()
