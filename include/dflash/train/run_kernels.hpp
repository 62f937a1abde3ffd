// SPDX-License-Identifier: Apache-2.0
// From configurations of models to the kernels that a run on GPUs needs.
#pragma once

#include <dflash/kernels/model_kernels.hpp>
#include <dflash/model/config.hpp>
#include <dflash/model/head_precision.hpp>
#include <dflash/target/config.hpp>

namespace dflash::train {

kernels::DrafterKernelShape kernel_shape(
    const model::DraftConfig& config,
    model::HeadPrecision head_precision = model::HeadPrecision::Compute);

kernels::TargetKernelShape kernel_shape(const target::TargetConfig& config);

}  // namespace dflash::train
