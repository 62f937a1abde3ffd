// SPDX-License-Identifier: Apache-2.0
#include <dflash/core/check.hpp>
#include <dflash/kernels/kernel_spec.hpp>

#include <fmt/format.h>
#include <map>

namespace dflash::kernels {

std::string KernelSpec::id() const {
    std::string text = entry + "[";
    for (const auto& [name, value] : constants) {
        text += fmt::format("{}{}={}", text.back() == '[' ? "" : ",", name, value);
    }
    return text + "]";
}

std::vector<KernelSpec> merge_kernels(const std::vector<std::vector<KernelSpec>>& lists) {
    std::vector<KernelSpec> merged;
    std::map<std::string, std::size_t> places;
    for (const std::vector<KernelSpec>& list : lists) {
        for (const KernelSpec& spec : list) {
            const auto [place, is_new] = places.emplace(spec.id(), merged.size());
            if (is_new) {
                merged.push_back(spec);
            } else {
                DFLASH_CHECK(merged[place->second] == spec,
                             "two different kernels are called {}",
                             place->first);
            }
        }
    }
    return merged;
}

}  // namespace dflash::kernels
