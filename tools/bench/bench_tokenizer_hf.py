#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times HF tokenizers as bench_tokenizer times ours.

    bench_tokenizer_hf.py TOKENIZER_JSON TEXT [--runs N] [--document BYTES]

One thread: encode() of one document after the other, and encode_batch() with
TOKENIZERS_PARALLELISM=false; all cores: encode_batch(). Prints the checksum of bench_tokenizer.
Needs tokenizers (measured with 0.23.3).
"""
import argparse
import os
import statistics
import subprocess
import sys
import time


def cut(text, least):
    documents = []
    while text:
        gap = text.find(b"\n\n", min(least, len(text)))
        size = len(text) if gap < 0 else gap + 2
        documents.append(text[:size].decode())
        text = text[size:]
    return documents


def checksum(ids):
    value = 0
    for id_ in ids:
        value = (value * 1000003 + id_) & 0xFFFFFFFFFFFFFFFF
    return value


def median_seconds(runs, work):
    times = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tokenizer")
    parser.add_argument("text")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--document", type=int, default=4096)
    arguments = parser.parse_args()
    if "TOKENIZERS_PARALLELISM" not in os.environ:
        # The library reads the variable once.
        for parallel in ("false", "true"):
            subprocess.run([sys.executable, *sys.argv], check=True,
                           env={**os.environ, "TOKENIZERS_PARALLELISM": parallel})
        return
    from tokenizers import Tokenizer, __version__

    tokenizer = Tokenizer.from_file(arguments.tokenizer)
    with open(arguments.text, "rb") as file:
        data = file.read()
    documents = cut(data, arguments.document)
    mb = len(data) / 1e6
    parallel = os.environ["TOKENIZERS_PARALLELISM"] == "true"

    def report(name, seconds, tokens):
        print(f"tokenizers {__version__}: {mb:.1f} MB in {len(documents)} documents, {name}: "
              f"{mb / seconds:.1f} MB/s, {tokens / seconds / 1e6:.2f} million tokens/s", flush=True)

    encodings = tokenizer.encode_batch(documents, add_special_tokens=False)
    tokens = sum(len(e.ids) for e in encodings)
    if not parallel:
        total = sum(checksum(e.ids) for e in encodings) & 0xFFFFFFFFFFFFFFFF
        print(f"{tokens} tokens, checksum {total:016x}")
        seconds = median_seconds(arguments.runs, lambda: [
            tokenizer.encode(d, add_special_tokens=False) for d in documents])
        report("1 thread, encode", seconds, tokens)
    cores = f"{os.cpu_count()} cores" if parallel else "1 thread"
    for name in ("encode_batch", "encode_batch_fast"):
        encode = getattr(tokenizer, name)
        seconds = median_seconds(
            arguments.runs, lambda: encode(documents, add_special_tokens=False))
        report(f"{cores}, {name}", seconds, tokens)
    if not parallel:
        mebi = 1 << 20
        for name, unit in (("one letter", "a"), ("spaces", " "), ("line feeds", "\n"),
                           ("digits", "7"), ("a combining mark", "\u0301")):
            times = []
            for size in (mebi, 2 * mebi):
                text = unit * (size // len(unit.encode()))
                begin = time.perf_counter()
                tokenizer.encode(text, add_special_tokens=False)
                times.append(1e3 * (time.perf_counter() - begin))
            print(f"{name}: 1 MiB in {times[0]:.0f} ms, 2 MiB in {times[1]:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
