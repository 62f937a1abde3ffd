// SPDX-License-Identifier: Apache-2.0
// The status of a run as lines for people.
#pragma once

#include <dflash/report/console.hpp>
#include <dflash/report/status.hpp>

#include <string>
#include <vector>

namespace dflash::report {

/// The lines of the live block. First what the run does, then a line a device, both in fields of
/// which a narrow terminal shows the first ones, whole. Where the devices are too many for the
/// room, neighbours of the same role share a line, and if that is not enough the last line says how
/// many devices are left out. `now_s`: seconds since 1970, which the clocks in the block go by.
std::vector<std::string> block_lines(const RunStatus& status, BlockSpace space, double now_s);

/// Who waits for whom, one line a device, as wide as it is; for reports.
std::vector<std::string> waiting_lines(const RunStatus& status);

}  // namespace dflash::report
