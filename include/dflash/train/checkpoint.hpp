// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a run: step-000500/draft in the published format, step-000500/state to continue
// bit for bit. A folder appears by rename, complete, or not at all.
#pragma once

#include <dflash/model/config.hpp>
#include <dflash/train/product_record.hpp>
#include <dflash/train/progress.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// The optimizer on the host: flat fp32 tensors in the layout of the weights' specs.
struct OptimizerState {
    at::Tensor master;       // [P]
    at::Tensor exp_avg;      // [P]
    at::Tensor exp_avg_sq;   // [P]
    std::int64_t steps = 0;  ///< that the moments have seen: those of the run less skipped ones
};

/// What must be equal for a run to be continued, by name: settings that change the maths, the
/// target, the data.
using Identity = std::map<std::string, std::string>;

struct Checkpoint {
    Progress progress;
    Identity identity;
    model::DraftConfig config;
    OptimizerState optimizer;
    ProductRecord products{};  ///< empty: no GPU, or written before there was such a record
};

/// What a save took.
struct SaveCost {
    double write_s = 0;   ///< until the bytes were on the disk
    double verify_s = 0;  ///< to read them back
    std::int64_t bytes = 0;
};

/// Reads and writes the checkpoints of one run folder.
class CheckpointStore {
  public:
    CheckpointStore(std::string run_folder, std::int64_t keep, std::int64_t keep_drafts);

    /// Writes step-NNNNNN into a temporary folder with the checksums of its files, synchronises and
    /// reads them back, renames the folder, points `latest` to it, and removes older ones: the
    /// newest `keep` stay whole, and of the others the `keep_drafts` best by `acceptance` keep
    /// their draft. Of a step that is saved already only an acceptance that is not there yet is
    /// added, at no cost. Throws Error{Storage}: then nothing is left of it, what was there before
    /// is untouched, and the call may be repeated. `between` is called every few MiB; what it
    /// throws ends the save in the same way.
    SaveCost save(const Checkpoint& checkpoint,
                  std::optional<double> acceptance,
                  const std::function<void()>& between = {});

    /// Steps with a whole checkpoint, rising.
    std::vector<std::int64_t> steps() const;

    /// Reads the checkpoint of `step`, or the newest, and compares all its files with their
    /// checksums; one that was written without checksums is read with a line that says so. Throws
    /// Error{Config} if there is none, Error{Data} if it is damaged.
    Checkpoint load(std::optional<std::int64_t> step) const;

    std::string folder_of(std::int64_t step) const;

    /// Held-out acceptance length of a saved step; nothing if the step was not evaluated.
    std::optional<double> acceptance_of(std::int64_t step) const;

    /// Renames checkpoints of later steps to step-NNNNNN.superseded: the run is about to be
    /// continued from before them.
    void set_aside_after(std::int64_t step) const;

    /// Removes temporary folders that an interrupted save left.
    void remove_leftovers() const;

  private:
    SaveCost save_new(const Checkpoint& checkpoint,
                      std::optional<double> acceptance,
                      const std::string& final_folder,
                      const std::function<void()>& between) const;
    void prune() const;

    std::string run_folder_;
    std::int64_t keep_;
    std::int64_t keep_drafts_;
    SaveCost untold_;  // of a checkpoint that has its name, until save() has done all the rest
};

/// Loads the weights of a draft folder (config.json + model.safetensors, published or speculators'
/// format) as flat fp32 in the layout of its specs. Accepts an optional "model." prefix. What
/// speculators stores of the target is left out with a line that says so. Throws Error{Config} or
/// Error{Data} naming missing, extra and misshapen weights.
struct LoadedDraft {
    model::DraftConfig config;
    at::Tensor flat_fp32;
};

LoadedDraft load_draft(const std::string& folder);

}  // namespace dflash::train
