// SPDX-License-Identifier: Apache-2.0
// The files of a drafter: its configuration, and its weights as views into the mapped files.
#pragma once

#include <dflash/io/safetensors.hpp>
#include <dflash/model/config.hpp>

#include <string>
#include <vector>

namespace dflash::train {

class DraftFiles {
  public:
    struct Entry {
        model::WeightSpec spec;
        const io::TensorView* view;  ///< of that shape, any dtype
    };

    /// Opens a folder in the published or in speculators' format. Throws Error{Config} or
    /// Error{Data} naming missing, extra and misshapen weights.
    explicit DraftFiles(const std::string& folder);

    DraftFiles(const DraftFiles&) = delete;
    DraftFiles& operator=(const DraftFiles&) = delete;

    const model::DraftConfig& config() const { return config_; }

    /// All weights, in the order of weight_specs().
    const std::vector<Entry>& entries() const { return entries_; }

    /// The file that holds a weight, for messages.
    std::string file_of(const Entry& entry) const { return weights_.file_of(entry.view->name); }

  private:
    model::DraftConfig config_;
    io::SafetensorsFolder weights_;
    std::vector<Entry> entries_;
};

}  // namespace dflash::train
