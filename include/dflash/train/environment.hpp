// SPDX-License-Identifier: Apache-2.0
// environment.json: what a run needs to be understood, or made again, long after.
#pragma once

#include <dflash/io/json.hpp>
#include <dflash/train/run_folder.hpp>

#include <vector>

namespace dflash::train {

/// Command line and folder, version and commit, compiler, libraries as loaded, driver, devices with
/// PCI ids, host, target and its revision, state of the data, when, after which step, what changed;
/// and under "former" the same of the earlier starts of the run, oldest first.
io::Json environment_json(const PreparedRun& run,
                          const RunStart& start,
                          std::vector<io::Json> former);

}  // namespace dflash::train
