// SPDX-License-Identifier: Apache-2.0
// Names for the integers that travel between modules.
#pragma once

#include <cstdint>

namespace dflash {

using TokenId = std::int32_t;  ///< row of the target's embedding
using SampleId =
    std::int64_t;            ///< place of a sample's line in the data list, counted over all files
using Bytes = std::int64_t;  ///< sizes of memory and files

}  // namespace dflash
