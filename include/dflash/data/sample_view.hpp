// SPDX-License-Identifier: Apache-2.0
// Samples as people read them: the text with the loss mask visible.
#pragma once

#include <dflash/data/dataset.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/io/json.hpp>

#include <string>
#include <vector>

namespace dflash::data {

/// Neighbouring tokens of one mask value.
struct SampleRun {
    std::string text;
    std::int64_t tokens = 0;
    bool trained = false;
};

struct SampleView {
    std::string place;  ///< "path:line"
    std::int64_t tokens = 0;
    std::int64_t trained_tokens = 0;
    std::vector<SampleRun> runs;
};

SampleView view_sample(const Dataset& dataset, const Tokenizer& tokenizer, SampleId id);

/// Lines for a terminal. With colours, trained text is green and the rest grey; without, trained
/// text stands between >>> and <<<. Control characters are escaped. Of a run longer than
/// `max_bytes` only both ends are shown.
std::vector<std::string> to_lines(const SampleView& view,
                                  bool colours,
                                  std::size_t max_bytes = 600);

io::Json to_json(const SampleView& view);

}  // namespace dflash::data
