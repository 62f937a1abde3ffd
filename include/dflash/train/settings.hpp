// SPDX-License-Identifier: Apache-2.0
// All settings of a run, one struct per component, each field declared once in its declare().
// Defaults are those of docs/configuration.md; a test holds the two together.
#pragma once

#include <dflash/core/settings.hpp>
#include <dflash/data/chat_format.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// [run]: what is trained on what, and how long. Command-line options of the same names set these.
struct RunSettings {
    std::string target = "Qwen/Qwen3.6-27B";
    std::string init;
    std::string data;  ///< one path, or several separated by commas
    std::string eval_data;
    std::string output;  ///< empty: runs/<target>-<yyyymmdd-hhmm>
    std::string gpus = "all";
    std::string split;        ///< "T+D"; empty: the planner decides
    std::string target_gpus;  ///< positions in the gpus list
    std::string draft_gpus;
    std::int64_t seed = 0;
    void declare(SettingList& list);
};

struct TrainSettings {
    double lr = 6e-4;
    std::vector<double> betas{0.9, 0.95};
    double eps = 1e-8;
    double weight_decay = 0;
    double clip = 1.0;
    std::string schedule = "cosine";  ///< or "wsd"
    double warmup_fraction = 0.04;
    double min_lr_fraction = 0.1;
    double wsd_decay_fraction = 0.2;
    std::int64_t epochs = 6;
    std::optional<std::int64_t> tokens;  ///< tokens of packed rows
    std::optional<double> hours;
    std::optional<std::int64_t> max_steps;
    std::int64_t rows_per_step = 12;
    std::string loss_weights = "decay";  ///< or "uniform", "dpace", "dpace-prefix", "dpace-suffix"
    std::optional<double> loss_decay_gamma;
    std::optional<double> dpace_alpha;
    std::int64_t recompute_layers = 0;
    std::string products = "guessed";  ///< or "timed", "torch"

    /// Whether weights follow the drafter's own probabilities.
    bool uses_dpace() const { return loss_weights.starts_with("dpace"); }

    void declare(SettingList& list);
};

struct DraftSettings {
    std::optional<std::int64_t> block_size;
    std::optional<std::int64_t> num_layers;
    std::optional<std::vector<std::int64_t>> target_layer_ids;
    std::int64_t anchors = 512;
    std::optional<std::int64_t> intermediate_size;
    std::optional<std::int64_t> num_heads;
    std::optional<std::int64_t> num_kv_heads;
    std::optional<std::int64_t> head_dim;
    std::optional<std::int64_t> sliding_window;
    std::optional<std::vector<std::int64_t>> sliding_layers;  ///< indices of sliding layers
    std::optional<std::int64_t> mask_token_id;
    std::string head_precision = "bf16";  ///< or "fp8-logits", "fp8"
    void declare(SettingList& list);
};

struct DataSettings {
    std::int64_t row_tokens = 8192;
    std::int64_t row_anchors = 2048;
    std::int64_t max_length = 4096;
    std::int64_t window = 2048;
    double max_bad_fraction = 0.01;
    std::int64_t min_trained_tokens = 1;
    std::string responses = "missing";  ///< or "dataset", "regenerate"
    std::int64_t check_answers = 64;
    std::optional<std::string> chat_format;
    data::RenderOptions render;
    data::GenericMarks generic;
    void declare(SettingList& list);
};

struct EvalSettings {
    double fraction = 0.005;
    Duration every{1800};
    double max_fraction = 0.03;  ///< of the time
    // Real decoding, in training (greedily, with the drafter's own blocks) and by `dflash eval`.
    std::optional<std::int64_t> acceptance_prompts;
    std::optional<std::int64_t> acceptance_tokens;
    std::int64_t batch = 8;
    double temperature = 0;
    double top_p = 1;
    std::int64_t top_k = 0;
    std::optional<std::int64_t> block_size;
    std::optional<bool> thinking;
    void declare(SettingList& list);
};

struct GateSettings {
    Duration every{600};
    std::optional<double> tolerance;
    void declare(SettingList& list);
};

struct CheckpointSettings {
    Duration every{1800};
    std::int64_t keep = 2;
    std::int64_t keep_drafts = 3;
    Duration patience{600};
    void declare(SettingList& list);
};

struct ReportSettings {
    Duration every{10};
    Duration line_every{60};
    void declare(SettingList& list);
};

struct WatchdogSettings {
    Duration after{300};
    void declare(SettingList& list);
};

struct HooksSettings {
    std::string metrics;
    std::string checkpoint;
    Duration wait{600};
    void declare(SettingList& list);
};

struct CacheSettings {
    std::string dir;  ///< empty: $XDG_CACHE_HOME/dflash, or ~/.cache/dflash
    void declare(SettingList& list);
};

/// [generate]: answers of the target. What has no value is as generation_config.json says.
struct GenerateSettings {
    std::string thinking = "mixed";  ///< "on", "off"; of families that can do both
    std::int64_t max_new_tokens = 2048;
    std::int64_t max_prompt_tokens = 4096;
    std::int64_t samples = 1;
    std::optional<double> temperature;
    std::optional<double> top_p;
    std::optional<std::int64_t> top_k;
    std::optional<std::int64_t> batch;
    double max_repeated = 1;
    std::int64_t shard_rows = 16384;
    void declare(SettingList& list);
};

struct Settings {
    RunSettings run;
    TrainSettings train;
    DraftSettings draft;
    DataSettings data;
    EvalSettings eval;
    GateSettings gate;
    CheckpointSettings checkpoint;
    ReportSettings report;
    WatchdogSettings watchdog;
    HooksSettings hooks;
    CacheSettings cache;
    GenerateSettings generate;

    /// All settings, bound to the fields of this object.
    SettingList list();
};

/// Checks what one setting's limits cannot: how settings fit together. Throws Error{Config} naming
/// them.
void check_settings(const Settings& settings);

}  // namespace dflash::train
