#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/data/unicode_tables.cpp: where the character tables inside the reference tokenizers
(tokenizers 0.23.3) differ from those of PCRE2 10.42 and utf8proc.

Needs Python 3.11 (its unicodedata is Unicode 14, as PCRE2 10.42) and unicodedata2==16.0.0.
Run from the root of the project: tools/golden/make_unicode_tables.py | clang-format > src/data/unicode_tables.cpp
test/golden/text/unicode-tables.json holds what was read out of the reference, character by character.
"""
import json
import sys
import unicodedata

import unicodedata2

CATEGORIES = ["Cc", "Cf", "Co", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No",
              "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs"]


def ranges(points):
    out = []
    for point in sorted(points):
        if out and out[-1][1] == point - 1:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def points(pairs):
    return {p for low, high in pairs for p in range(int(low, 16), int(high, 16) + 1)}


def table(name, pairs):
    body = ", ".join(f"{{0x{low:X}, 0x{high:X}}}" for low, high in pairs)
    return f"constexpr CodePointRange {name}[] = {{{body}}};\n"


def main():
    if unicodedata.unidata_version != "14.0.0" or unicodedata2.unidata_version != "16.0.0":
        sys.exit("needs unicodedata of Unicode 14 (Python 3.11) and unicodedata2 16.0.0")
    with open("test/golden/text/unicode-tables.json", encoding="utf-8") as file:
        reference = json.load(file)

    added = {c: [] for c in CATEGORIES}
    for point in range(0x110000):
        new = unicodedata2.category(chr(point))
        if new in added and new != unicodedata.category(chr(point)):
            added[new].append(point)
    for letter, key in (("L", "letters"), ("N", "numbers"), ("M", "marks")):
        ours = {p for c in CATEGORIES if c[0] == letter for p in added[c]
                if unicodedata.category(chr(p))[0] != letter}
        theirs = points(reference[key + "_beyond_unicode_14"])
        if ours != theirs or reference[key + "_only_unicode_14"]:
            sys.exit(f"{key}: the reference has other classes than Unicode 16: "
                     f"{[hex(p) for p in sorted(ours ^ theirs)]}")

    # A composition that the reference does not know must not happen either, so the first part of
    # each is cut off from what follows. First parts are no part of any composition it does know.
    inert = points(reference["nfc_combining_class_0"])
    unknown = points(reference["nfc_no_decomposition"])
    firsts = set()
    for point in unknown:
        parts = unicodedata2.normalize("NFD", chr(point))
        if len(parts) > 1:
            firsts.add(ord(parts[0]))
            if len(parts) == 3:
                # The one-step decomposition is (composed first two, third).
                firsts.add(ord(unicodedata2.normalize("NFC", parts[:2])))
    for point in range(0x110000):
        one_step = unicodedata2.decomposition(chr(point))
        if one_step and not one_step.startswith("<"):
            if int(one_step.split()[0], 16) in firsts and point not in unknown:
                sys.exit(f"U+{point:04X} begins with a character that is to be cut off")
    inert |= unknown | firsts

    out = "// SPDX-License-Identifier: Apache-2.0\n"
    out += "// Written by tools/golden/make_unicode_tables.py.\n"
    out += "#include \"unicode_tables.hpp\"\n\nnamespace dflash::data {\nnamespace {\n\n"
    used = [c for c in CATEGORIES if added[c]]
    for category in used:
        out += table(f"k{category}", ranges(added[category]))
    out += "\nconstexpr CategoryAdditions kCategories[] = {"
    out += ", ".join(f'{{"{c}", k{c}}}' for c in used) + "};\n\n"
    numbers = {p for c in ("Nd", "Nl", "No") for p in added[c]}
    numbers |= points(reference["digits_pretokenizer_beyond_numbers"])
    out += table("kNumbers", ranges(numbers))
    out += table("kNfcInert", ranges(inert))
    out += "\n}  // namespace\n\n"
    out += "std::span<const CategoryAdditions> category_additions() { return kCategories; }\n\n"
    out += "std::span<const CodePointRange> added_numbers() { return kNumbers; }\n\n"
    out += "std::span<const CodePointRange> nfc_inert() { return kNfcInert; }\n\n"
    out += "}  // namespace dflash::data\n"
    sys.stdout.write(out)


if __name__ == "__main__":
    main()
