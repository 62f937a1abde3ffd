// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dflash/io/jsonl.hpp>

#include <cstddef>
#include <span>

namespace dflash::io {

/// How bytes are packed, by the first of them.
Compression compression_of(std::span<const std::byte> bytes);

}  // namespace dflash::io
