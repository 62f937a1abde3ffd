// SPDX-License-Identifier: Apache-2.0
// The list of data files as people write it: "a.jsonl,more/*.jsonl.gz:0.5".
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dflash::data {

struct DataFile {
    std::string path;
    double weight;  ///< how often an epoch takes each of its rows

    DataFile(std::string file_path, double file_weight = 1)
        : path(std::move(file_path)), weight(file_weight) {}

    friend bool operator==(const DataFile&, const DataFile&) = default;
};

/// Files of a list with commas between. An item is a path or a pattern with *, ? or [...], which
/// stands for the files it matches in the order of their names; behind it ":WEIGHT" may follow. An
/// item that is the path of a file is taken as it is. Empty items mean nothing.
///
/// Throws Error{Config} for a pattern that matches nothing, a folder, a file that is named twice,
/// and a weight that is not above 0 and at most 100. Whether a path without a pattern is there is
/// not looked at.
std::vector<DataFile> parse_data_list(const std::string& list);

}  // namespace dflash::data
