// SPDX-License-Identifier: Apache-2.0
// One message of a row: role, content, reasoning, tool calls, weight, under the names that data
// sets use for them.
#pragma once

#include "row_fields.hpp"

#include <string>
#include <vector>

namespace dflash::data {

/// A message object. `place` is its path ("messages[1]"). Adds fields that are not read to
/// `ignored`, as "messages[].NAME".
Message read_message(const io::Json& json,
                     const std::string& place,
                     std::vector<std::string>& ignored);

/// A list of messages.
std::vector<Message> read_message_list(const io::Json& list,
                                       const std::string& place,
                                       std::vector<std::string>& ignored);

}  // namespace dflash::data
