// SPDX-License-Identifier: Apache-2.0
// Reading of reference data: one JSON value a line, lines split at LF only.
#pragma once

#include <dflash/io/json.hpp>

#include <doctest/doctest.h>
#include <fstream>
#include <string>
#include <vector>

namespace dflash::data::testing {

inline std::vector<std::string> read_lines(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    REQUIRE_MESSAGE(in.good(), path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) {
        lines.push_back(line);
    }
    return lines;
}

inline std::vector<io::Json> read_cases(const std::string& path) {
    std::vector<io::Json> cases;
    for (const std::string& line : read_lines(path)) {
        cases.push_back(io::Json::parse(line, path));
    }
    return cases;
}

}  // namespace dflash::data::testing
