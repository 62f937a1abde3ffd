// SPDX-License-Identifier: Apache-2.0
// All kernels of RMS norms for one hidden size.
#pragma once

#include <dflash/kernels/rms_norm.hpp>

#include <cstdint>
#include <vector>

namespace dflash::kernels {

inline std::vector<KernelSpec> rms_norm_variants(std::int64_t hidden) {
    constexpr Element kTypes[] = {Element::BFloat16, Element::Float32};
    std::vector<KernelSpec> specs = {
        rms_norm_forward_kernel({.hidden = hidden, .x = Element::BFloat16}),
        rms_norm_forward_kernel({.hidden = hidden, .x = Element::Float32}),
        rms_norm_forward_kernel({.hidden = hidden, .add_to_residual = true})};
    for (const Element x : kTypes) {
        for (const Element dy : kTypes) {
            for (const Element dx : kTypes) {
                for (const bool add : {false, true}) {
                    specs.push_back(rms_norm_backward_kernel(
                        {.hidden = hidden, .x = x, .dy = dy, .dx = dx, .add = add}));
                }
            }
        }
    }
    return specs;
}

}  // namespace dflash::kernels
