// SPDX-License-Identifier: Apache-2.0
// What is wrong with captured features, in words. Pure functions of values on the host.
//
// The features of a causal model do not depend on what follows, so the first tokens of a document,
// run through the target again on their own, must give the same features within rounding. That
// comparison finds every fault in them; what the values look like names it.
//
// K tapped layers, T tokens of the row, n tokens of a prefix, H hidden size.
#pragma once

#include <dflash/core/error.hpp>
#include <dflash/data/packed_row.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dflash::train {

/// The beginning of a document: as the row's slot holds it, and as the target computes it alone.
/// fp32 on the host, [K, n, H].
struct FeaturePrefix {
    std::size_t document = 0;  ///< index in the row
    at::Tensor in_slot_KnH;
    at::Tensor alone_KnH;
};

/// The first tokens of a prefix once more, as decoding computes them: some as a prompt into a
/// cache, the others one by one behind it. fp32 on the host.
struct DecodedPrefix {
    std::int64_t prompt = 0;  ///< tokens that went in together
    at::Tensor features_KdH;  ///< of all d tokens, in the order of FeatureEvidence::taps
    at::Tensor extended_sH;   ///< residual after the last loaded layer of the s = d - prompt
                              ///< tokens that came one by one ...
    at::Tensor stepped_sH;    ///< ... and by the decode step that graphs replay
};

/// Features of a row as far as they are looked at.
struct FeatureEvidence {
    const data::PackedRow* row = nullptr;
    std::vector<std::int64_t> taps;  ///< [K] layers, in the order of the planes
    /// Of every position in every plane, fp32 on the host: largest magnitude (NaN if any value is)
    /// and Euclidean norm. Two equal rows have equal numbers.
    at::Tensor largest_KT;
    at::Tensor norm_KT;
    std::vector<FeaturePrefix> prefixes;
    std::optional<DecodedPrefix> decoded{};  ///< of the first prefix, if that has two tokens
    /// Largest relative difference that is rounding.
    double tolerance = 0;
};

/// The first tokens of an earlier row, by which another row's features are recognised.
struct KnownFeatures {
    std::int64_t row = 0;
    at::Tensor features_KnH;
};

/// The relative difference of a position's features that nine in ten positions stay below, over all
/// layers and prefixes: what is compared with the tolerance. Positions that are not finite on both
/// sides do not count.
double feature_difference(const FeatureEvidence& evidence);

/// Nothing if all is well. Numeric where the target itself computes what is wrong, Internal where
/// the slot holds something else than the target computes. A few positions that are not finite are
/// no fault: the step skips them.
std::optional<Error> judge_features(const FeatureEvidence& evidence,
                                    const std::vector<KnownFeatures>& earlier = {});

}  // namespace dflash::train
