// SPDX-License-Identifier: Apache-2.0
// The text side of a run: the target's tokenizer and chat format, and the data files that are read
// with them.
#pragma once

#include <dflash/data/chat_format.hpp>
#include <dflash/data/dataset.hpp>
#include <dflash/data/tokenizer.hpp>
#include <dflash/target/config.hpp>
#include <dflash/train/settings.hpp>

#include <memory>
#include <string>

namespace dflash::train {

struct RunText {
    target::TargetLocation location;
    target::TargetConfig target;
    std::shared_ptr<const data::Tokenizer> tokenizer;
    std::shared_ptr<const data::ChatFormat> format;
    std::string format_origin;  ///< for people: how it was chosen
};

/// Finds the target and reads what belongs to its text. Throws Error{Config}.
RunText open_text(const Settings& settings);

/// How rows are judged and encoded.
data::DatasetOptions dataset_options(const Settings& settings);

/// Opens and judges the files of a list (run.data, run.eval_data). Throws as Dataset::open does.
data::Dataset open_data(const std::string& list,
                        const RunText& text,
                        const data::DatasetOptions& options);

/// cache.dir, or where it is by default; empty if there is nowhere.
std::string cache_root(const CacheSettings& settings);

}  // namespace dflash::train
