// SPDX-License-Identifier: Apache-2.0
// Matrices on the GPU between poison, loaded row-wise kernels, and measures of their accuracy.
#pragma once

#include <dflash/core/scope.hpp>
#include <dflash/gpu/device.hpp>
#include <dflash/gpu/stream.hpp>
#include <dflash/kernels/architecture.hpp>
#include <dflash/kernels/kernel_builder.hpp>
#include <dflash/kernels/kernel_driver.hpp>
#include <dflash/kernels/launch.hpp>
#include <dflash/kernels/row_tensor.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace dflash::kernels::test {

/// Rounded to the nearest bf16, ties to even.
double round_to_bf16(double x);

/// Rounded as an element of a tensor.
double round_to(Element element, double x);

/// Normally distributed values, rounded to the element.
std::vector<double> random_rows(std::uint64_t id,
                                std::int64_t count,
                                Element element = Element::BFloat16,
                                double scale = 1,
                                double shift = 0);

/// Loads kernels on the first GPU, each once.
class RowKernels {
  public:
    RowKernels();

    /// Builds many at once, in parallel.
    void prepare(const std::vector<KernelSpec>& specs);

    LoadedKernel get(const KernelSpec& spec);

    int num_multiprocessors() const;

    Architecture architecture() const { return driver_->architecture(device_); }

    gpu::StreamView stream() const { return stream_.view(); }

  private:
    gpu::Device device_;
    gpu::Stream stream_;
    KernelBuilder builder_;
    std::unique_ptr<KernelDriver> driver_;
    std::deque<BuiltKernel> built_;
    std::vector<LoadedKernel> loaded_;
};

RowKernels& row_kernels();  ///< of this program

/// A matrix on the GPU. What is around it and between its rows is NaN, and so are its elements
/// until they are set or written.
class DeviceRows : NonCopyable {
  public:
    DeviceRows(std::int64_t rows, std::int64_t columns, Element element, std::int64_t padding = 0);
    DeviceRows(std::int64_t rows,
               std::int64_t columns,
               Element element,
               std::int64_t padding,
               const std::vector<double>& values);
    ~DeviceRows();

    RowTensor tensor() const;

    /// The columns from `begin` on as a tensor.
    RowTensor columns_from(std::int64_t begin) const;

    /// First element, where the elements are fp32.
    float* floats() const;

    void set(const std::vector<double>& values);

    /// Waits for the kernels' stream. Fails the running test if anything but elements was written.
    std::vector<double> fetch() const;

    /// The same of fp32 elements, as the integers that their bits are.
    std::vector<double> fetch_bits() const;

  private:
    template <typename Read>
    std::vector<double> fetch_by(const Read& read_one) const;
    std::size_t place(std::size_t element) const;  // byte of the memory

    std::size_t rows_;
    std::size_t columns_;
    std::size_t stride_;
    Element element_;
    std::size_t bytes_;
    unsigned char* data_ = nullptr;
};

/// |got - exact| / |exact| in the Euclidean norm; NaN if there is a NaN.
double relative_error(const std::vector<double>& got, const std::vector<double>& exact);

/// Fails the running test unless the error is at most that of the naive computation and 1e-5.
/// `naive` rounds the result of every elementwise operation to bf16, sums exactly.
void check_against_naive(const std::string& name,
                         const std::vector<double>& got,
                         const std::vector<double>& exact,
                         const std::vector<double>& naive);

/// Fails the running test unless the error is that of fp32 arithmetic: at most 2e-6, some ulp.
void check_fp32(const std::string& name,
                const std::vector<double>& got,
                const std::vector<double>& exact);

}  // namespace dflash::kernels::test
