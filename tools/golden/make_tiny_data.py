#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes test/golden/tiny-data.jsonl: 96 short conversations for configs/tiny-cpu.toml, in the shapes
the program reads.

usage: tools/golden/make_tiny_data.py > test/golden/tiny-data.jsonl
"""
import json

ANIMALS = ["cat", "dog", "horse", "mouse", "owl", "fox", "hen", "goat"]
SOUNDS = ["meows", "barks", "neighs", "squeaks", "hoots", "yelps", "clucks", "bleats"]


def rows():
    for i in range(96):
        a, b = 3 + (i * 7) % 40, 1 + (i * 5) % 30
        animal, sound = ANIMALS[i % 8], SOUNDS[i % 8]
        if i % 4 == 0:
            question = f"What is {a} + {b}?"
            answer = f"{a} + {b} = {a + b}. So the answer is {a + b}."
            yield {"messages": [{"role": "user", "content": question},
                                {"role": "assistant", "content": answer}]}
        elif i % 4 == 1:
            yield {"prompt": f"What does the {animal} do?", "response": f"The {animal} {sound}. It {sound} all day."}
        elif i % 4 == 2:
            first = i % 5
            up = " ".join(str(n) for n in range(first, first + 7))
            down = " ".join(str(n) for n in range(first + 6, first - 1, -1))
            turns = [("human", f"Count from {first} to {first + 6}."), ("gpt", up)]
            turns += [("human", "And back."), ("gpt", down)]
            yield {"conversations": [{"from": who, "value": text} for who, text in turns]}
        else:
            code = f"def times_{b}(x):\n    return {b} * x\n\nprint(times_{b}({a}))  # {a * b}\n"
            yield {"messages": [{"role": "system", "content": "You write Python."},
                                {"role": "user", "content": f"A function that multiplies by {b}."},
                                {"role": "assistant", "content": code}]}


for row in rows():
    print(json.dumps(row, ensure_ascii=False))
