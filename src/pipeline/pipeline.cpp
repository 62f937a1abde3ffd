// SPDX-License-Identifier: Apache-2.0
#include "graph.hpp"

#include <dflash/pipeline/pipeline.hpp>

#include <utility>

namespace dflash::pipeline {

Pipeline::Pipeline(PipelineOptions options,
                   SampleSource& source,
                   Encoder& encoder,
                   RowPacker& packer,
                   TargetStage& target,
                   FirstError& first_error)
    : graph_(std::make_unique<Graph>(options, source, encoder, packer, target, first_error)) {}

Pipeline::~Pipeline() = default;

void Pipeline::start() {
    graph_->start();
}

std::optional<RowLease> Pipeline::next() {
    std::optional<ReadyRow> ready = graph_->next();
    if (!ready) {
        return std::nullopt;
    }
    return RowLease(std::move(ready->slot_return), std::move(ready->row), ready->slot);
}

void Pipeline::stop() {
    graph_->stop();
}

PipelineStats Pipeline::stats() const {
    return graph_->stats();
}

std::shared_ptr<const PipelineBoard> Pipeline::board() const {
    return graph_->board();
}

RowLease::RowLease(std::shared_ptr<void> token, RowPtr row, int slot)
    : token_(std::move(token)), row_(std::move(row)), slot_(slot) {}

RowLease::RowLease(RowLease&& other) noexcept = default;

RowLease& RowLease::operator=(RowLease&& other) noexcept {
    if (this != &other) {
        release();
        token_ = std::move(other.token_);
        row_ = std::move(other.row_);
        slot_ = other.slot_;
    }
    return *this;
}

RowLease::~RowLease() {
    release();
}

void RowLease::release() noexcept {
    // The graph may end with the last slot, so nothing follows its return.
    row_.reset();
    token_.reset();
}

}  // namespace dflash::pipeline
