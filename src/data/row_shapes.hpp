// SPDX-License-Identifier: Apache-2.0
// The shapes of rows: which fields hold the messages.
#pragma once

#include "row_fields.hpp"

namespace dflash::data {

/// The messages, tools and later turns of a row that is JSON. Throws RowRefusal.
Conversation read_shape(const io::Json& row);

/// A list of messages or pairs, as the value of `field`.
std::vector<Message> read_messages_field(const Field& field);

/// A list of tool definitions, or nothing if there are none.
std::optional<io::Json> read_tools(const Field& field);

}  // namespace dflash::data
