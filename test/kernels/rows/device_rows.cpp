// SPDX-License-Identifier: Apache-2.0
#include "device_rows.hpp"

#include "float8.hpp"

#include <dflash/core/check.hpp>
#include <dflash/core/random.hpp>
#include <dflash/gpu/check.hpp>
#include <dflash/kernels/kernel_cache.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

namespace dflash::kernels::test {
namespace {

constexpr std::size_t kGuardBytes = 1024;
constexpr unsigned char kPoison = 0xff;  // all bits set are a NaN of all types

std::size_t bytes_of(Element element) {
    return static_cast<std::size_t>(size_of(element));
}

void write(unsigned char* target, Element element, double value) {
    if (is_float8(element)) {
        *target = float8_bits(element, value);
        return;
    }
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    if (element == Element::Float32) {
        std::memcpy(target, &bits, 4);
    } else {
        const auto half = static_cast<std::uint16_t>(bits >> 16);
        std::memcpy(target, &half, 2);
    }
}

double read(const unsigned char* source, Element element) {
    if (is_float8(element)) {
        return float8_value(element, *source);
    }
    std::uint32_t bits = 0;
    if (element == Element::Float32) {
        std::memcpy(&bits, source, 4);
    } else {
        std::uint16_t half = 0;
        std::memcpy(&half, source, 2);
        bits = std::uint32_t{half} << 16;
    }
    return std::bit_cast<float>(bits);
}

std::string cache_folder() {
    const char* const folder = std::getenv("DFLASH_KERNEL_CACHE");
    return folder != nullptr ? folder : default_cache_root() + "/kernels";
}

}  // namespace

double round_to_bf16(double x) {
    // Values come from one operation on bf16 values or from fp64 sums: rounding by way of fp32
    // errs only in ties of the second kind.
    auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
    bits += 0x7fff + ((bits >> 16) & 1);
    return std::bit_cast<float>(bits & 0xffff0000U);
}

double round_to(Element element, double x) {
    if (is_float8(element)) {
        return float8_value(element, float8_bits(element, x));
    }
    return element == Element::Float32 ? double{static_cast<float>(x)} : round_to_bf16(x);
}

std::vector<double> random_rows(
    std::uint64_t id, std::int64_t count, Element element, double scale, double shift) {
    RandomStream random(1, Purpose::Test, 0, id);
    std::vector<double> values(static_cast<std::size_t>(count));
    for (double& value : values) {
        value = round_to(element, shift + scale * random.normal());
    }
    return values;
}

RowKernels::RowKernels()
    : device_(gpu::parse_devices("0").front()),
      builder_(SourceSet::embedded(), CacheOptions{.folder = cache_folder()}),
      driver_(make_cuda_driver()) {}

void RowKernels::prepare(const std::vector<KernelSpec>& specs) {
    const Architecture architecture = driver_->architecture(device_);
    std::vector<KernelRequest> requests;
    for (const KernelSpec& spec : merge_kernels({specs})) {
        const auto is_same = [&](const LoadedKernel& kernel) { return kernel.spec() == spec; };
        if (std::none_of(loaded_.begin(), loaded_.end(), is_same)) {
            requests.push_back({spec, architecture});
        }
    }
    for (BuiltKernel& built : builder_.build(requests)) {
        built_.push_back(std::move(built));
        loaded_.emplace_back(
            built_.back().request.spec, driver_->load(built_.back(), device_), device_.ordinal);
    }
}

LoadedKernel RowKernels::get(const KernelSpec& spec) {
    prepare({spec});
    return *std::find_if(loaded_.begin(), loaded_.end(), [&](const LoadedKernel& kernel) {
        return kernel.spec() == spec;
    });
}

int RowKernels::num_multiprocessors() const {
    int count = 0;
    gpu::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device_.ordinal));
    return count;
}

RowKernels& row_kernels() {
    static RowKernels kernels;
    return kernels;
}

DeviceRows::DeviceRows(std::int64_t rows,
                       std::int64_t columns,
                       Element element,
                       std::int64_t padding)
    : rows_(static_cast<std::size_t>(rows)),
      columns_(static_cast<std::size_t>(columns)),
      stride_(static_cast<std::size_t>(columns + padding)),
      element_(element),
      bytes_(2 * kGuardBytes + rows_ * stride_ * bytes_of(element)) {
    void* data = nullptr;
    gpu::check(cudaMalloc(&data, bytes_));
    data_ = static_cast<unsigned char*>(data);
    gpu::check(cudaMemset(data_, kPoison, bytes_));
    gpu::check(cudaDeviceSynchronize());
}

DeviceRows::DeviceRows(std::int64_t rows,
                       std::int64_t columns,
                       Element element,
                       std::int64_t padding,
                       const std::vector<double>& values)
    : DeviceRows(rows, columns, element, padding) {
    set(values);
}

DeviceRows::~DeviceRows() {
    cudaFree(data_);
}

RowTensor DeviceRows::tensor() const {
    return columns_from(0);
}

RowTensor DeviceRows::columns_from(std::int64_t begin) const {
    return {data_ + place(static_cast<std::size_t>(begin)),
            static_cast<std::int64_t>(stride_),
            element_};
}

float* DeviceRows::floats() const {
    DFLASH_CHECK(element_ == Element::Float32, "not a matrix of fp32");
    return reinterpret_cast<float*>(data_ + kGuardBytes);
}

std::size_t DeviceRows::place(std::size_t element) const {
    return kGuardBytes + (element / columns_ * stride_ + element % columns_) * bytes_of(element_);
}

void DeviceRows::set(const std::vector<double>& values) {
    DFLASH_CHECK(values.size() == rows_ * columns_, "{} values", values.size());
    std::vector<unsigned char> all(bytes_, kPoison);
    for (std::size_t i = 0; i < values.size(); ++i) {
        write(all.data() + place(i), element_, values[i]);
    }
    gpu::check(cudaMemcpy(data_, all.data(), bytes_, cudaMemcpyHostToDevice));
    gpu::check(cudaDeviceSynchronize());
}

std::vector<double> DeviceRows::fetch() const {
    return fetch_by([&](const unsigned char* source) { return read(source, element_); });
}

std::vector<double> DeviceRows::fetch_bits() const {
    DFLASH_CHECK(element_ == Element::Float32, "not a matrix of fp32");
    return fetch_by([](const unsigned char* source) {
        std::uint32_t bits = 0;
        std::memcpy(&bits, source, sizeof(bits));
        return static_cast<double>(bits);
    });
}

template <typename Read>
std::vector<double> DeviceRows::fetch_by(const Read& read_one) const {
    row_kernels().stream().synchronize();
    std::vector<unsigned char> all(bytes_);
    gpu::check(cudaMemcpy(all.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    std::vector<double> values(rows_ * columns_);
    for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = read_one(all.data() + place(i));
        std::fill_n(all.data() + place(i), bytes_of(element_), kPoison);
    }
    const bool untouched =
        std::all_of(all.begin(), all.end(), [](unsigned char byte) { return byte == kPoison; });
    CHECK(untouched);
    return values;
}

double relative_error(const std::vector<double>& got, const std::vector<double>& exact) {
    DFLASH_CHECK(got.size() == exact.size(), "{} and {} values", got.size(), exact.size());
    double difference = 0;
    double size = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        difference += (got[i] - exact[i]) * (got[i] - exact[i]);
        size += exact[i] * exact[i];
    }
    return std::sqrt(difference) / std::max(std::sqrt(size), 1e-30);
}

void check_against_naive(const std::string& name,
                         const std::vector<double>& got,
                         const std::vector<double>& exact,
                         const std::vector<double>& naive) {
    const double error = relative_error(got, exact);
    const double bound = relative_error(naive, exact) + 1e-5;
    CAPTURE(name);
    CHECK(error <= bound);
}

void check_fp32(const std::string& name,
                const std::vector<double>& got,
                const std::vector<double>& exact) {
    const double error = relative_error(got, exact);
    CAPTURE(name);
    CHECK(error <= 2e-6);
}

}  // namespace dflash::kernels::test
