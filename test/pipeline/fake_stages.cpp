// SPDX-License-Identifier: Apache-2.0
#include "fake_stages.hpp"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <stdexcept>
#include <utility>

namespace dflash::pipeline {

std::string error_text(const Fault& fault) {
    return fmt::format("fault {} at {}", static_cast<int>(fault.at), fault.step);
}

void throw_fault(const Fault& fault) {
    throw std::runtime_error(error_text(fault));
}

void random_pause(int max_us, std::uint64_t seed, std::uint64_t key) {
    std::uint64_t bits = (seed + 1) * 0x9e3779b97f4a7c15ULL + key * 0xbf58476d1ce4e5b9ULL;
    bits ^= bits >> 31;
    if (max_us > 0) {
        const auto limit = static_cast<std::uint64_t>(max_us);
        std::this_thread::sleep_for(std::chrono::microseconds(bits % limit));
    } else if (bits % 4 == 0) {
        std::this_thread::yield();
    }
}

data::SampleRef FakeSource::next() {
    if (fault_.hits(Fault::At::Source, next_)) {
        throw_fault(fault_);
    }
    const std::int64_t index = next_++;
    return {.index = index, .place = index, .id = index, .end = index == num_samples_};
}

data::Sample FakeEncoder::encode(const data::SampleRef& ref) {
    if (fault_.hits(Fault::At::Encode, ref.index)) {
        throw_fault(fault_);
    }
    random_pause(max_pause_us_, seed_, static_cast<std::uint64_t>(ref.index));
    data::Sample sample;
    sample.ref = ref;
    if (!ref.end && usable_(ref.index)) {
        sample.tokens = {static_cast<TokenId>(ref.index)};
        sample.trainable = {1};
    } else if (!ref.end) {
        sample.dropped = "unusable";
    }
    return sample;
}

std::vector<data::PackedRow> FakePacker::push(data::Sample sample) {
    if (fault_.hits(Fault::At::Pack, sample.ref.index)) {
        throw_fault(fault_);
    }
    const bool end = sample.ref.end;
    if (!end) {
        samples_.push_back(std::move(sample));
    }
    std::vector<data::PackedRow> rows;
    if (end || std::ssize(samples_) == window_) {
        rows = close_window();
    }
    if (end) {
        data::PackedRow row;
        row.index = next_row_++;
        row.num_samples = 1;
        row.end = true;
        rows.push_back(std::move(row));
    }
    return rows;
}

std::vector<data::PackedRow> FakePacker::close_window() {
    std::vector<data::PackedRow> rows;
    std::int64_t dropped = 0;
    std::int64_t room = 0;
    for (const data::Sample& sample : samples_) {
        if (sample.tokens.empty()) {
            ++dropped;
            continue;
        }
        if (room == 0) {
            rows.emplace_back().index = next_row_++;
            room = std::uniform_int_distribution<std::int64_t>(1, max_row_samples_)(random_);
        }
        --room;
        data::PackedRow& row = rows.back();
        ++row.num_samples;
        row.documents.push_back({.id = sample.ref.id});
        row.tokens.push_back(sample.tokens.front());
    }
    if (rows.empty() && dropped > 0) {
        rows.emplace_back().index = next_row_++;
    }
    if (!rows.empty()) {
        rows.front().num_samples += dropped;
    }
    samples_.clear();
    return rows;
}

void FakeSlots::write(int slot, std::int64_t row) {
    const auto s = static_cast<std::size_t>(slot);
    if (holders_[s].exchange(row) != -1) {
        ++num_conflicts_;
    }
    features_[s] = row;
}

void FakeSlots::read(int slot, std::int64_t row) {
    const auto s = static_cast<std::size_t>(slot);
    if (holders_[s] != row || features_[s] != row) {
        ++num_conflicts_;
    }
}

void FakeSlots::let_go(int slot) {
    holders_[static_cast<std::size_t>(slot)] = -1;
}

FakeReplica::FakeReplica(
    FakeSlots& slots, FirstError& first_error, int max_pause_us, std::uint64_t seed, Fault fault)
    : slots_(slots),
      first_error_(first_error),
      max_pause_us_(max_pause_us),
      seed_(seed),
      fault_(fault),
      thread_([this] { run(); }) {}

FakeReplica::~FakeReplica() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

void FakeReplica::start(const RowPtr& row, int slot, std::function<void()> done) {
    if (fault_.hits(Fault::At::TargetStart, row->index)) {
        throw_fault(fault_);
    }
    if (row->empty()) {
        slots_.write(slot, row->index);
        done();
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back({row, slot, std::move(done)});
    }
    wake_.notify_one();
}

void FakeReplica::run() {
    for (;;) {
        Job job;
        {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
            if (jobs_.empty()) {
                return;
            }
            job = std::move(jobs_.front());
            jobs_.pop_front();
        }
        try {
            forward(job.row, job.slot, job.done);
        } catch (...) {
            first_error_.store(std::current_exception());
        }
    }
}

void FakeReplica::forward(const RowPtr& row, int slot, const std::function<void()>& done) {
    if (fault_.hits(Fault::At::TargetForward, row->index)) {
        throw_fault(fault_);
    }
    random_pause(max_pause_us_, seed_ + 7, static_cast<std::uint64_t>(row->index));
    slots_.write(slot, row->index);
    done();
}

}  // namespace dflash::pipeline
