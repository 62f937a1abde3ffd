// SPDX-License-Identifier: Apache-2.0
#include "golden_check.hpp"

#include <dflash/core/error.hpp>

#include <cstdio>
#include <exception>
#include <functional>

namespace dflash::golden {

void Verdict::compare(const std::string& quantity,
                      double error,
                      double tolerance,
                      const std::string& where) {
    const bool held = error <= tolerance;
    ++compared_;
    failed_ += held ? 0 : 1;
    fmt::print("{}  {:<44} max error {:.3e}  tolerance {:.1e}  at {}\n",
               held ? "ok  " : "FAIL",
               quantity,
               error,
               tolerance,
               where);
}

void Verdict::exact(const std::string& quantity,
                    std::int64_t wrong,
                    std::int64_t total,
                    const std::string& where) {
    ++compared_;
    failed_ += wrong == 0 ? 0 : 1;
    fmt::print("{}  {:<44} {} of {} wrong{}{}\n",
               wrong == 0 ? "ok  " : "FAIL",
               quantity,
               wrong,
               total,
               where.empty() ? "" : "  first at ",
               where);
}

void Verdict::note(const std::string& text) {
    fmt::print("note  {}\n", text);
}

namespace {

constexpr const char* kUsage =
    "usage: golden_check target DIR... [--gpus LIST]\n"
    "       golden_check step CASE_DIR... [--gpus LIST]\n"
    "       golden_check trace CASE_DIR... [--gpus LIST]\n"
    "       golden_check decode CASE_DIR... [--gpus LIST]\n"
    "       golden_check tokenizer TOKENIZER_JSON FILE...\n"
    "       golden_check chat TOKENIZER_JSON|- FILE...\n"
    "       golden_check rows ROWS|FOLDER EXPECTED\n"
    "       golden_check draft DRAFT_DIR EXPECTED\n";

int run(std::vector<std::string> args) {
    Options options;
    options.device = gpu::parse_devices("cpu:1").front();
    for (std::size_t i = 0; i < args.size(); ++i) {
        if (args[i] == "--gpus" && i + 1 < args.size()) {
            options.device = gpu::parse_devices(args[i + 1]).front();
            args.erase(args.begin() + static_cast<std::ptrdiff_t>(i),
                       args.begin() + static_cast<std::ptrdiff_t>(i) + 2);
            break;
        }
    }
    const std::string mode = args.empty() ? "" : args[0];
    // These have something before the cases.
    const bool takes_two =
        mode == "tokenizer" || mode == "chat" || mode == "rows" || mode == "draft";
    if (args.size() < (takes_two ? 3U : 2U)) {
        fmt::print(stderr, "{}", kUsage);
        return 2;
    }
    bool all_ok = true;
    for (std::size_t i = takes_two ? 2 : 1; i < args.size(); ++i) {
        fmt::print("{} {}\n", mode, args[i]);
        Verdict verdict;
        if (mode == "target") {
            check_target(args[i], options, verdict);
        } else if (mode == "step") {
            check_step(args[i], options, verdict);
        } else if (mode == "trace") {
            check_trace(args[i], options, verdict);
        } else if (mode == "decode") {
            check_decode(args[i], options, verdict);
        } else if (mode == "tokenizer") {
            check_tokenizer(args[1], args[i], verdict);
        } else if (mode == "chat") {
            check_chat(args[1], args[i], verdict);
        } else if (mode == "rows") {
            check_rows(args[1], args[i], verdict);
        } else if (mode == "draft") {
            check_draft(args[1], args[i], verdict);
        } else {
            fmt::print(stderr, "golden_check: unknown mode {}\n{}", mode, kUsage);
            return 2;
        }
        fmt::print("{} {}: {}\n",
                   mode,
                   args[i],
                   verdict.ok() ? "passed" : fmt::format("{} FAILED", verdict.failed()));
        all_ok = all_ok && verdict.ok();
    }
    return all_ok ? 0 : 1;
}

}  // namespace
}  // namespace dflash::golden

int main(int argc, char** argv) {
    try {
        return dflash::golden::run({argv + 1, argv + argc});
    } catch (const std::exception& error) {
        fmt::print(stderr, "golden_check: {}\n", error.what());
        return 1;
    }
}
