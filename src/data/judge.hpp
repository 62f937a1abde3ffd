// SPDX-License-Identifier: Apache-2.0
// Judging: every row is read, rendered and tokenised once, in several threads, before the first
// step; what came out is counted, and only lengths are kept.
#pragma once

#include "data_files.hpp"
#include "line_encoder.hpp"

#include <dflash/data/data_report.hpp>
#include <dflash/data/dataset.hpp>

#include <cstdint>
#include <vector>

namespace dflash::data {

struct Judgement {
    DataReport report;
    std::vector<SampleId> usable;       // rising
    std::vector<std::int32_t> lengths;  // tokens of the usable ones, after cutting
};

/// Does not depend on the number of threads.
Judgement judge_rows(const DataFiles& files,
                     const LineEncoder& encoder,
                     const DatasetOptions& options);

}  // namespace dflash::data
