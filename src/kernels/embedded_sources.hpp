// SPDX-License-Identifier: Apache-2.0
// What tools/cmake/EmbedText.cmake writes into the build folder.
#pragma once

#include <span>
#include <string_view>

namespace dflash::kernels {

struct EmbeddedFile {
    std::string_view name;
    std::string_view text;
};

std::span<const EmbeddedFile> embedded_files();

}  // namespace dflash::kernels
