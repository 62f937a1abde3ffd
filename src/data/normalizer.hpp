// SPDX-License-Identifier: Apache-2.0
// NFC on utf8proc, with the way back: which bytes of the given text each byte of the result came
// from.
//
// The text is cut where nothing can compose or be reordered across the cut (before a starter that
// is no second part of a composition). Each section is normalised alone, so that a change stays
// local and a text of any length, even of combining marks only, takes O(n log n).
#pragma once

#include <dflash/data/tokenizer.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::data {

/// A section that NFC rewrote.
struct NfcChange {
    ByteRange given;
    ByteRange result;
};

struct NormalizedText {
    std::string text;
    std::vector<NfcChange> changes;  ///< rising, disjoint

    /// Bytes of the given text for a range of `text` that begins and ends at characters. A range
    /// that touches a rewritten section covers the whole of it.
    ByteRange to_given(ByteRange range) const;
};

/// NFC of well-formed UTF-8, with the tables of the reference tokenizers (nfc_inert). Empty if the
/// text is its own NFC.
std::optional<NormalizedText> normalize_nfc(std::string_view text);

}  // namespace dflash::data
