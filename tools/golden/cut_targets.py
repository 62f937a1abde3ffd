#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies reference targets into test/golden/targets with fewer sequences.

A reference target is a checkpoint folder with expected.safetensors (layout: test/golden/targets/README.md)
and expected.json. Configuration and weights are copied as they are; of the expected values the sequences of
the given lengths are kept. Needs nothing but Python.

    tools/golden/cut_targets.py SOURCE DESTINATION --targets T1 T1b T3 --lengths 1 3 65 130
"""
import argparse
import json
import pathlib
import shutil
import struct


def read_safetensors(path):
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_bytes])
    metadata = header.pop("__metadata__", None)
    body = data[8 + header_bytes :]
    return {name: (entry, body[slice(*entry["data_offsets"])]) for name, entry in header.items()}, metadata


def write_safetensors(path, tensors, metadata):
    header = {"__metadata__": metadata} if metadata else {}
    offset = 0
    for name, (entry, data) in tensors.items():
        header[name] = {"dtype": entry["dtype"], "shape": entry["shape"], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, data in tensors.values()))


def cut(source, destination, lengths):
    destination.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.name == "config.json" or path.name.startswith("model"):
            shutil.copyfile(path, destination / path.name)
    tensors, metadata = read_safetensors(source / "expected.safetensors")
    prefixes = {f"T{length:04d}" for length in lengths}
    missing = prefixes - {name.split(".")[0] for name in tensors}
    if missing:
        raise SystemExit(f"{source}: expected.safetensors has no {', '.join(sorted(missing))}")
    kept = {name: value for name, value in tensors.items() if name.split(".")[0] in prefixes}
    write_safetensors(destination / "expected.safetensors", kept, metadata)
    facts = json.loads((source / "expected.json").read_text())
    facts["lengths"] = lengths
    facts["per_length"] = {str(length): facts["per_length"][str(length)] for length in lengths}
    (destination / "expected.json").write_text(json.dumps(facts, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, help="folder with one folder per target")
    parser.add_argument("destination", type=pathlib.Path)
    parser.add_argument("--targets", nargs="+", required=True, help="names of folders")
    parser.add_argument("--lengths", nargs="+", type=int, required=True, help="sequences to keep, in tokens")
    arguments = parser.parse_args()
    for name in arguments.targets:
        cut(arguments.source / name, arguments.destination / name, arguments.lengths)


if __name__ == "__main__":
    main()
