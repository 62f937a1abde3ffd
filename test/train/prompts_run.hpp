// SPDX-License-Identifier: Apache-2.0
// Runs of the tiny target whose rows it answers itself.
#pragma once

#include "../target/model_folder.hpp"
#include "tiny_run.hpp"

#include <dflash/core/error.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/json.hpp>
#include <dflash/report/console.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::train {

using target::testing::error_of;

/// Rows without an answer, with numbers from `first` up to `end`.
std::string prompts(int first, int end);

/// The same with answers.
std::string answered(int first, int end);

void write(const std::string& path, const std::string& text);

/// What is logged while it lives.
class Lines {
  public:
    Lines()
        : console_(report::console()),  // which takes the log when it is first asked for
          former_(set_log_sink([this](LogLevel, std::string_view line) {
              text += std::string(line) + "\n";
              if (on_line) {
                  on_line(line);
              }
          })) {}

    ~Lines() { set_log_sink(std::move(former_)); }

    bool have(const std::string& part) const { return text.find(part) != std::string::npos; }

    std::string text;
    std::function<void(std::string_view)> on_line{};  ///< called for every further line

  private:
    [[maybe_unused]] report::Console& console_;
    LogSink former_;
};

/// Two passes over the data, with the cache in the same folder.
TrainRequest request_for(const TemporaryFolder& folder, const std::string& name);

/// The lines of a journal of answers, but the first.
std::vector<io::Json> lines_of(const std::string& path);

/// Answers that the target gave in a run of its own, not from the cache.
std::int64_t num_generated(const std::string& run_folder);

}  // namespace dflash::train
