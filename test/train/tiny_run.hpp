// SPDX-License-Identifier: Apache-2.0
// Runs of the tiny target and data in test/golden, in this process.
#pragma once

#include <dflash/io/json.hpp>
#include <dflash/train/session.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace dflash::train {

/// A folder that is removed with the object.
class TemporaryFolder {
  public:
    TemporaryFolder();
    ~TemporaryFolder();
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    std::string path(const std::string& name) const { return (folder_ / name).string(); }

  private:
    std::filesystem::path folder_;
};

/// Settings of configs/tiny-cpu.toml with `steps` steps, writing to `output`.
TrainRequest tiny_request(const std::string& output, std::int64_t steps);

/// Gives targets to `target_positions` and drafters to `draft_positions` of `cpu:N`.
void set_roles(TrainRequest& request,
               int num_devices,
               const std::string& target_positions,
               const std::string& draft_positions);

/// Trains and returns the exit code.
int run(const TrainRequest& request);

/// The objects of metrics.jsonl of one kind, "step" or "eval".
std::vector<io::Json> metrics(const std::string& run_folder, const std::string& kind);

/// Losses of all steps.
std::vector<double> losses(const std::string& run_folder);

/// Bytes of a file.
std::string file_bytes(const std::string& path);

}  // namespace dflash::train
