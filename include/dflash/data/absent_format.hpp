// SPDX-License-Identifier: Apache-2.0
// The chat format of a target whose format is not known: rows of finished tokens need none.
#pragma once

#include <dflash/core/error.hpp>
#include <dflash/data/chat_format.hpp>

#include <memory>

namespace dflash::data {

/// A format named "none" that throws `reason` when a conversation or finished text needs it.
std::unique_ptr<ChatFormat> make_absent_format(Error reason);

}  // namespace dflash::data
