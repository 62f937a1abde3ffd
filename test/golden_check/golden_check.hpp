// SPDX-License-Identifier: Apache-2.0
// golden_check MODE ARGS... [--gpus LIST]: compares this implementation with reference data. Prints
// for every quantity the largest error, its tolerance and where it is; exits 0 if all hold, 1 if
// not, 2 for a wrong command line.
#pragma once

#include <dflash/gpu/device.hpp>

#include <fmt/format.h>
#include <string>
#include <vector>

namespace dflash::golden {

/// Collects comparisons; prints each; knows whether all held.
class Verdict {
  public:
    /// One compared quantity: held iff error <= tolerance (so not for NaN).
    void compare(const std::string& quantity,
                 double error,
                 double tolerance,
                 const std::string& where);

    /// A quantity that must be exactly right: `wrong` of `total` are not.
    void exact(const std::string& quantity,
               std::int64_t wrong,
               std::int64_t total,
               const std::string& where);

    /// Printed, but not part of the verdict.
    void note(const std::string& text);

    bool ok() const { return failed_ == 0 && compared_ > 0; }

    int failed() const { return failed_; }

  private:
    int failed_ = 0;
    int compared_ = 0;
};

/// Where to compute; fp32 without TF32 on either.
struct Options {
    gpu::Device device;
};

void check_target(const std::string& folder, const Options& options, Verdict& verdict);
void check_step(const std::string& case_folder, const Options& options, Verdict& verdict);
void check_trace(const std::string& case_folder, const Options& options, Verdict& verdict);

/// `case_folder` names a target and a drafter, and has the rounds of several prompts.
void check_decode(const std::string& case_folder, const Options& options, Verdict& verdict);
void check_tokenizer(const std::string& tokenizer_json, const std::string& cases, Verdict& verdict);
void check_chat(const std::string& tokenizer_json, const std::string& cases, Verdict& verdict);

/// `expected` is written by tools/golden/check_export.py.
void check_draft(const std::string& folder, const std::string& expected, Verdict& verdict);

/// `rows` is a file of rows or a folder of such files.
void check_rows(const std::string& rows, const std::string& expected, Verdict& verdict);

}  // namespace dflash::golden
