// SPDX-License-Identifier: Apache-2.0
// A saved drafter in the format of a server or of another trainer.
#pragma once

#include <dflash/core/types.hpp>
#include <dflash/model/draft_format.hpp>
#include <dflash/train/draft_source.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

struct ExportRequest {
    std::string source;                ///< folder of a run, of a step or of a drafter
    std::optional<std::int64_t> step;  ///< of a run; none: the newest
    model::DraftFormat format = model::DraftFormat::Zlab;
    std::string output;  ///< a folder that is not there yet
    std::string target;  ///< folder or ORG/NAME; empty: as the run says
    bool check = false;  ///< whether what was written is read again and compared
};

/// Two drafters, weight by weight and in what they compute.
struct DraftComparison {
    /// In words, most telling first: keys of the configuration, weights, hidden rows.
    std::vector<std::string> differences;
    std::int64_t num_weights = 0;
    std::int64_t num_hidden_rows = 0;
};

struct ExportResult {
    DraftSource source;
    model::DraftConfig config;
    std::string target;  ///< for commands; empty if nobody named it
    std::int64_t num_weights = 0;
    Bytes bytes = 0;
    std::int64_t rounded_weights = 0;  ///< of another dtype than bf16
    std::optional<DraftComparison> comparison;
};

/// Writes `output`, which appears by a rename, complete and, with `check`, compared. Throws
/// Error{Config}: nothing there to export, a folder that is there already, a drafter that the
/// format or its server refuses or that belongs to another target; Error{Data}: damaged or not
/// finite weights, a result that differs; Error{Storage}.
ExportResult export_draft(const ExportRequest& request);

/// Compares bit for bit, weights as bf16: the configurations as the published format says them, all
/// weights, and the hidden rows that both compute of a small made-up row in fp32 on the CPU. Takes
/// 12 bytes of memory a parameter.
DraftComparison compare_drafts(const std::string& folder, const std::string& other_folder);

}  // namespace dflash::train
