// SPDX-License-Identifier: Apache-2.0
// K tapped layers, T tokens of the row, P tokens of the prefixes together, H hidden size.
#include <dflash/core/check.hpp>
#include <dflash/core/log.hpp>
#include <dflash/core/text.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/feature_gate.hpp>
#include <dflash/train/torch_worker.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fmt/format.h>
#include <span>
#include <utility>

namespace dflash::train {
namespace {

/// Of a document that are run again.
constexpr std::int32_t kPrefixTokens = 64;

/// Of the first document that are decoded: so many as a prompt, and as many one by one.
constexpr std::int64_t kDecodedTokens = 8;

/// Positions whose features are converted to fp32 at a time.
constexpr std::int64_t kChunk = 1024;

/// Rows whose beginnings are kept, to recognise them elsewhere.
constexpr std::size_t kKeptRows = 8;

// What rounding makes of the same sums in another order and in other pieces (docs/numerics.md has
// what was measured).
constexpr double kToleranceFp32 = 1e-3;
constexpr double kToleranceBf16 = 0.2;

/// First tokens of the documents that are looked at: the first and the last one.
struct Prefixes {
    std::vector<std::size_t> documents;
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> positions;
    std::vector<std::int32_t> starts{0};

    explicit Prefixes(const data::PackedRow& row) {
        documents.push_back(0);
        if (row.documents.size() > 1) {
            documents.push_back(row.documents.size() - 1);
        }
        for (const std::size_t index : documents) {
            const data::Document& document = row.documents[index];
            for (std::int32_t t = 0; t < std::min(document.length, kPrefixTokens); ++t) {
                tokens.push_back(row.tokens[static_cast<std::size_t>(document.begin + t)]);
                positions.push_back(t);
            }
            starts.push_back(static_cast<std::int32_t>(tokens.size()));
        }
    }
};

/// Largest magnitude and norm of every position of a plane [T, H]: two tensors [T] on its device.
std::pair<at::Tensor, at::Tensor> look_at(const at::Tensor& plane_TH) {
    std::vector<at::Tensor> largest;
    std::vector<at::Tensor> norms;
    for (std::int64_t begin = 0; begin < plane_TH.size(0); begin += kChunk) {
        const at::Tensor part =
            plane_TH.narrow(0, begin, std::min(kChunk, plane_TH.size(0) - begin)).to(at::kFloat);
        largest.push_back(at::linalg_vector_norm(part, INFINITY, {1}));
        norms.push_back(at::linalg_vector_norm(part, 2, {1}));
    }
    return {at::cat(largest), at::cat(norms)};
}

/// Extends a slot and leaves the features of the new tokens in `planes_KdH` from its length on.
at::Tensor extend(target::TargetModel& model,
                  target::DecodeCache& cache,
                  std::int32_t slot,
                  std::span<const TokenId> tokens,
                  std::span<const std::int64_t> taps,
                  const at::Tensor& planes_KdH) {
    const std::int64_t begin = cache.length(slot);
    const std::vector<std::int32_t> starts{0, narrow<std::int32_t>(tokens.size())};
    return model.extend(cache,
                        {.tokens = tokens, .starts = starts, .slots = std::span(&slot, 1)},
                        taps,
                        [&](std::int64_t layer, const at::Tensor& residual_TH) {
                            const auto k =
                                std::find(taps.begin(), taps.end(), layer) - taps.begin();
                            planes_KdH[k].narrow(0, begin, residual_TH.size(0)).copy_(residual_TH);
                        });
}

/// Decodes the first tokens of a document both ways that decoding has: passes over new tokens in
/// slot 0, steps whose input lies on the device in slot 1.
std::optional<DecodedPrefix> decode_prefix(target::TargetModel& model,
                                           std::span<const TokenId> document,
                                           std::span<const std::int64_t> taps) {
    const std::int64_t all = std::min(std::ssize(document), 2 * kDecodedTokens);
    if (all < 2) {
        return std::nullopt;
    }
    const std::int64_t prompt = all / 2;
    const auto tokens = document.first(static_cast<std::size_t>(all));
    const auto first = tokens.first(static_cast<std::size_t>(prompt));
    const std::unique_ptr<target::DecodeCache> cache = model.make_cache(2, all);
    const at::TensorOptions options = model.embed_VH().options();
    const at::Tensor planes_KdH =
        at::empty({std::ssize(taps), all, model.config().hidden_size}, options);
    extend(model, *cache, 0, first, taps, planes_KdH);
    std::vector<at::Tensor> extended;
    for (const TokenId& token : tokens.subspan(first.size())) {
        extended.push_back(
            extend(model, *cache, 0, std::span(&token, 1), taps, planes_KdH)[0].clone());
    }
    // Other tokens from here on, so that it shows when slots are taken for each other.
    const std::vector<TokenId> backwards(tokens.rbegin(), tokens.rend());
    cache->truncate(0, 0);
    extend(model, *cache, 0, backwards, {}, {});
    extend(model, *cache, 1, first, {}, {});
    std::vector<at::Tensor> stepped;
    for (const TokenId token : tokens.subspan(first.size())) {
        const auto on_device = [&](std::int64_t value) {
            return at::full({1}, value, options.dtype(at::kInt));
        };
        stepped.push_back(model
                              .decode(*cache,
                                      {.tokens_T = on_device(token),
                                       .slots_S = on_device(1),
                                       .lengths_S = on_device(cache->length(1))})[0]
                              .clone());
        cache->note_appended(1, 1);
    }
    const auto on_host = [](const at::Tensor& x) { return x.cpu().to(at::kFloat); };
    return DecodedPrefix{.prompt = prompt,
                         .features_KdH = on_host(planes_KdH),
                         .extended_sH = on_host(at::stack(extended)),
                         .stepped_sH = on_host(at::stack(stepped))};
}

}  // namespace

FeatureGate::FeatureGate(std::vector<std::unique_ptr<TargetReplica>>& targets,
                         std::vector<std::unique_ptr<DrafterRank>>& ranks,
                         std::function<std::string(SampleId)> place_of,
                         const GateSettings& settings)
    : targets_(targets), ranks_(ranks), place_of_(std::move(place_of)), settings_(settings) {}

void FeatureGate::warm_up(const data::PackedRow& row, const std::vector<FeatureSlot>& slots) {
    for (const auto& rank : ranks_) {
        for (const auto& target : targets_) {
            gather(row, slots[static_cast<std::size_t>(rank->rank())], *rank, *target);
        }
    }
}

bool FeatureGate::due(std::int64_t step, double trained_s) const {
    if (!first_step_ || step == *first_step_) {
        return true;
    }
    const double every_s = settings_.every.seconds;
    return every_s > 0 && trained_s - *checked_at_s_ >= every_s;
}

double FeatureGate::tolerance() const {
    const bool single = compute_dtype(targets_.front()->worker().device()) == at::ScalarType::Float;
    return settings_.tolerance.value_or(single ? kToleranceFp32 : kToleranceBf16);
}

FeatureEvidence FeatureGate::gather(const data::PackedRow& row,
                                    const FeatureSlot& slot,
                                    DrafterRank& owner,
                                    TargetReplica& target) const {
    FeatureEvidence evidence;
    evidence.row = &row;
    evidence.taps = target.taps();
    evidence.tolerance = tolerance();
    const Prefixes prefixes(row);
    for (const std::size_t document : prefixes.documents) {
        evidence.prefixes.push_back({.document = document, .in_slot_KnH = {}, .alone_KnH = {}});
    }
    owner.worker().call({"look at features of row", row.index}, [&] {
        slot.written.wait(current_stream(owner.worker().device()));
        const at::Tensor planes_KTH = slot.row_planes(row.num_tokens());
        std::vector<at::Tensor> largest;
        std::vector<at::Tensor> norms;
        for (std::int64_t k = 0; k < planes_KTH.size(0); ++k) {
            auto [largest_T, norm_T] = look_at(planes_KTH[k]);
            largest.push_back(std::move(largest_T));
            norms.push_back(std::move(norm_T));
        }
        evidence.largest_KT = at::stack(largest).cpu();
        evidence.norm_KT = at::stack(norms).cpu();
        for (FeaturePrefix& prefix : evidence.prefixes) {
            const data::Document& document = row.documents[prefix.document];
            prefix.in_slot_KnH =
                planes_KTH.narrow(1, document.begin, std::min(document.length, kPrefixTokens))
                    .cpu()
                    .to(at::kFloat);
        }
    });
    target.worker().call({"compute again features of row", row.index}, [&] {
        std::vector<at::Tensor> planes(evidence.taps.size());
        target.model().capture(
            {.tokens = prefixes.tokens, .positions = prefixes.positions, .starts = prefixes.starts},
            evidence.taps,
            [&](std::int64_t layer, const at::Tensor& residual_PH) {
                const auto k = std::find(evidence.taps.begin(), evidence.taps.end(), layer) -
                               evidence.taps.begin();
                // A copy of its own on the CPU, too: the next layer adds to it.
                planes[static_cast<std::size_t>(k)] = residual_PH.clone().cpu().to(at::kFloat);
            });
        const at::Tensor planes_KPH = at::stack(planes);
        for (std::size_t i = 0; i < evidence.prefixes.size(); ++i) {
            evidence.prefixes[i].alone_KnH = planes_KPH.narrow(
                1, prefixes.starts[i], prefixes.starts[i + 1] - prefixes.starts[i]);
        }
        evidence.decoded = decode_prefix(target.model(),
                                         std::span(std::as_const(prefixes.tokens))
                                             .first(static_cast<std::size_t>(prefixes.starts[1])),
                                         evidence.taps);
    });
    return evidence;
}

void FeatureGate::check(const data::PackedRow& row,
                        const FeatureSlot& slot,
                        DrafterRank& owner,
                        std::int64_t step,
                        double trained_s) {
    const auto start = std::chrono::steady_clock::now();
    first_step_ = first_step_.value_or(step);
    checked_at_s_ = trained_s;
    TargetReplica& target = *targets_[next_target_++ % targets_.size()];
    const FeatureEvidence evidence = gather(row, slot, owner, target);
    if (const std::optional<Error> fault =
            judge_features(evidence, {earlier_.begin(), earlier_.end()})) {
        ErrorParts parts = fault->parts();
        parts.where += fmt::format(", computed again on {}; its first sample is {}",
                                   target.worker().device().name,
                                   place_of_(row.documents.front().id));
        throw Error(fault->kind(), std::move(parts));
    }
    earlier_.push_back({row.index, evidence.prefixes.front().alone_KnH});
    if (earlier_.size() > kKeptRows) {
        earlier_.pop_front();
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (!std::exchange(told_, true)) {
        log_info(
            "features  of the first row are those that the target computes for its first "
            "tokens alone: relative difference {:.1e}, tolerance {:.1e}; checked in {}",
            feature_difference(evidence),
            evidence.tolerance,
            format_seconds(seconds));
    }
}

}  // namespace dflash::train
