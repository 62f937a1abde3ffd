// SPDX-License-Identifier: Apache-2.0
// Order between the work of two workers, the same code for CUDA and CPU devices.
//
// The producer queues its work, records the signal and then tells the consumer's thread (posts a
// task, passes a barrier); the consumer waits for the signal on its stream and queues what depends
// on it. On CPU devices work is done when its call returns, so telling the thread is all there is
// to it, and the signal does nothing.
#pragma once

#include <dflash/gpu/event.hpp>
#include <dflash/gpu/stream.hpp>

#include <map>

namespace dflash::gpu {

/// One mark at a time: the one recorded last counts. It may be recorded from a different device
/// each time (a slot is filled by whichever target replica is free); an event is made on the first
/// record from a device. Not thread-safe by itself: recording happens before the telling, waiting
/// after it, and the next recording only after the consumer has told the producer that it has
/// called wait() (a later mark in its place could depend on the consumer's own work, and two
/// streams would wait for each other).
class Signal {
  public:
    /// Marks what is queued on `stream`, a stream of the thread's current device. Asynchronous.
    void record(StreamView stream);

    /// Makes what is queued on `stream` from now on wait for the mark. Asynchronous. Does nothing
    /// before the first record.
    void wait(StreamView stream) const;

    /// Whether the work before the mark is done; true before the first record.
    bool reached() const;

    /// Blocks the calling thread until the work before the mark is done.
    void synchronize() const;

  private:
    const Event* last() const;

    std::map<int, Event> events_;  // by CUDA ordinal
    int last_ordinal_ = -1;
};

}  // namespace dflash::gpu
