// SPDX-License-Identifier: Apache-2.0
// A golden case of the drafter: settings, sequences, weights; rows made of it; and comparisons in
// the measures of the golden data's README.
//
// b sequences, N anchors of a sequence, B block size, S tokens, K tapped layers, H hidden size.
#pragma once

#include "golden_check.hpp"

#include <dflash/data/packed_row.hpp>
#include <dflash/io/json.hpp>
#include <dflash/io/safetensors.hpp>
#include <dflash/model/drafter.hpp>

#include <ATen/ATen.h>
#include <cstdint>
#include <string>
#include <vector>

namespace dflash::golden {

/// Anchors of every sequence; -1 for unused ones.
using Anchors = std::vector<std::vector<std::int32_t>>;

struct Sequence {
    std::vector<TokenId> tokens;          // [S]
    std::vector<std::uint8_t> trainable;  // [S]
    at::Tensor features_KSH;              // fp32, on the device
};

struct DrafterCase {
    std::string folder;
    io::Json json;
    model::DraftConfig config;
    double gamma = 0;  // 0: uniform
    model::LossWeights loss_weights;
    std::vector<Sequence> sequences;

    /// Reads case.json and the files that it names. Throws Error{Config} for a loss other than
    /// cross-entropy with fixed weights or those of D-PACE.
    DrafterCase(const std::string& case_folder, at::Device device);

    /// Path of a file named by case.json.
    std::string path(const std::string& key) const;

    /// A drafter with the case's weights.
    std::unique_ptr<model::Drafter> make_drafter(at::Device device,
                                                 at::ScalarType dtype,
                                                 model::DrafterPaths paths) const;

    /// In fp32, with the tiled attention.
    std::unique_ptr<model::Drafter> make_oracle(at::Device device) const;

    /// Sequences of `members`, packed one after another.
    data::PackedRow make_row(const std::vector<std::size_t>& members, const Anchors& anchors) const;

    /// Their features, [K, T, H].
    at::Tensor features(const std::vector<std::size_t>& members) const;
};

/// Reads a list of lists of anchors.
Anchors read_anchors(const io::Json& json);

/// Sum, sum of squares, and sum weighted by (i mod 97) - 48, in fp64.
std::vector<double> checksums(const at::Tensor& values);

/// max |a - b| / rms(b) and rms(a - b) / rms(b).
double max_over_rms(const at::Tensor& a, const at::Tensor& b);
double rms_over_rms(const at::Tensor& a, const at::Tensor& b);

/// The largest of several errors, and where it is.
class Worst {
  public:
    void add(double error, const std::string& where) {
        // A NaN must not lose against a number.
        if (!(error <= error_)) {
            error_ = error;
            where_ = where;
        }
    }

    double error() const { return error_; }

    const std::string& where() const { return where_; }

  private:
    double error_ = 0;
    std::string where_ = "everywhere";
};

}  // namespace dflash::golden
