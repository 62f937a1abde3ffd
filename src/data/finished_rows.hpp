// SPDX-License-Identifier: Apache-2.0
// Rows that bring what a chat format would have made: finished text, or token ids with or without a
// loss mask.
#pragma once

#include "row_fields.hpp"

#include <string>

namespace dflash::data {

/// The value of `text`.
FinishedText read_finished_text(const Field& text);

/// The value of `input_ids`, with the mask that stands beside it. `shape` gets the name of both.
FinishedTokens read_finished_tokens(const Field& ids, RowFields& fields, std::string& shape);

}  // namespace dflash::data
