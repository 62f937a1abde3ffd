// SPDX-License-Identifier: Apache-2.0
// Tool definitions as gpt-oss reads them: a namespace of TypeScript types.
#pragma once

#include <dflash/io/json.hpp>

#include <string>

namespace dflash::data {

/// "## functions", the namespace and its types. Throws Error{Data} where the template would fail:
/// a tool without a function, name or description, a default of an enum that is not text.
std::string typescript_tools(const io::Json& tools);

}  // namespace dflash::data
