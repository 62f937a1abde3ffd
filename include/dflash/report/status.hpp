// SPDX-License-Identifier: Apache-2.0
// What a run is doing now: what the live block shows and status.json holds.
#pragma once

#include <dflash/io/json.hpp>
#include <dflash/report/failure_report.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dflash::report {

enum class RunState {
    Starting,   ///< loading, compiling kernels
    Answering,  ///< the target answers rows of the data
    Training,
    Evaluating,
    Saving,    ///< and training waits for it
    Stopping,  ///< a stop was asked for, or the end is being written
    Done,      ///< reached its length
    Stopped,   ///< saved and ended because somebody asked for it
    Failed,
};

/// "starting", "training", ...
std::string_view to_string(RunState state);

/// The process is expected to be there: neither done nor stopped nor failed.
bool is_live(RunState state);

/// Of one logical device. Shares and what it waits for are of the last interval of report.every.
struct DeviceStatus {
    std::string name{};      ///< as --gpus names it
    std::string role{};      ///< "target", "drafter", "both"
    double busy = 0;         ///< share in which its worker ran a task
    std::int64_t tasks = 0;  ///< of its worker, queued or running now
    double waited = 0;       ///< share in which it could have worked and had nothing to work on
    std::string
        waits_for{};  ///< "target", "slots" (the drafters), "rows" (the data); empty: nothing

    // What its sensors say; of the whole physical GPU.
    std::optional<double> use{};
    std::optional<std::int64_t> memory_used_bytes{};
    std::optional<std::int64_t> memory_total_bytes{};
    std::optional<double> power_w{};
    std::optional<std::int64_t> sm_clock_mhz{};
    std::optional<std::int64_t> temperature_c{};

    bool operator==(const DeviceStatus&) const = default;
};

/// Figures after a step; speeds are means over the last interval of report.every.
struct StepStatus {
    std::int64_t step = 0;
    std::int64_t epoch = 0;
    std::int64_t tokens = 0;
    double loss = 0;
    double accuracy = 0;
    double learning_rate = 0;
    double gradient_norm = 0;
    double fraction_done = 0;
    double drafter_tokens_per_s = 0;
    double target_tokens_per_s = 0;
    double drafter_waited = 0;  ///< share of the time in which the drafters waited for the target
    double target_waited = 0;   ///< in which the targets waited for slots, that is the drafters
    double seconds = 0;         ///< of training since the beginning of the run
    std::optional<double> left_s{};  ///< from the speed of the last minutes
    double at_s = 0;                 ///< when it was finished, in seconds since 1970

    bool operator==(const StepStatus&) const = default;
};

struct HeldOutStatus {
    std::int64_t step = 0;
    double loss = 0;
    double acceptance_length = 0;
    double bigram_acceptance_length = 0;

    bool operator==(const HeldOutStatus&) const = default;
};

/// Real decoding of held-out prompts.
struct DecodedStatus {
    std::int64_t step = 0;
    double tau = 0;
    std::optional<double> first_tau{};  ///< at step 0
    double lookup_tau = 0;              ///< of prompt look-up

    bool operator==(const DecodedStatus&) const = default;
};

struct SavedStatus {
    std::int64_t step = 0;
    double at_s = 0;  ///< in seconds since 1970

    bool operator==(const SavedStatus&) const = default;
};

/// All of it. Times are in seconds since 1970 unless they say otherwise.
struct RunStatus {
    RunState state = RunState::Starting;
    std::string doing;  ///< in words, where the state does not say it all: "loading the target"
    std::string background;  ///< what goes on beside it: "saving step 1000"
    std::string folder;
    std::string version;

    // The process that writes; its start tells it from a later one with the same id.
    std::string host;
    std::int64_t pid = 0;
    std::int64_t process_start_ticks =
        0;  ///< since the machine's start, field 22 of /proc/PID/stat

    double started_s = 0;  ///< this process took up the run
    double written_s = 0;
    double every_s = 0;  ///< between two writings, while all is well

    std::optional<StepStatus> step;
    std::optional<HeldOutStatus> held_out;
    std::optional<DecodedStatus> decoded;
    std::optional<SavedStatus> saved;
    std::vector<DeviceStatus> devices;
    double process_cpu = 0;  ///< processor time of the process per second, in processors
    std::int64_t process_bytes = 0;

    std::int64_t warnings = 0;
    std::string last_warning;

    std::optional<Failure> failure;
    std::optional<std::int64_t> exit_code;
};

/// status.json (docs/formats.md); one object.
io::Json to_json(const RunStatus& status);

/// Reads what to_json() made. Keys that are not known are passed over. Throws Error{Data} naming
/// `where` if it is something else, or of a later schema.
RunStatus status_from_json(const io::Json& json, const std::string& where);

}  // namespace dflash::report
