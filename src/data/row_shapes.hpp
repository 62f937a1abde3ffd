// SPDX-License-Identifier: Apache-2.0
// The shapes of rows: which fields hold the messages.
#pragma once

#include "row_fields.hpp"

namespace dflash::data {

/// A row that is JSON. Throws RowRefusal.
Row read_shape(const io::Json& json);

/// A list of messages or pairs, as the value of `field`. Adds fields of messages that are not read
/// to `ignored`.
std::vector<Message> read_messages_field(const Field& field, std::vector<std::string>& ignored);

/// A list of tool definitions, or nothing if there are none.
std::optional<io::Json> read_tools(const Field& field);

}  // namespace dflash::data
