#include "cpu/pool.hpp"

#include <string>
#include <system_error>

#include "engine/error.hpp"

namespace dflash {

namespace {

constexpr int kSpins = 2000;       // about 0.1 ms: longer than the gaps between the matmuls of one forward pass
constexpr int kSpinsToYield = 500;  // a thread that holds a chunk may have lost its core

void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

constexpr uint64_t next_of(uint64_t ticket) { return ticket & 0xffffffff; }
constexpr uint64_t total_of(uint64_t ticket) { return ticket >> 32; }

}  // namespace

Pool::Pool(int threads) {
    workers_.reserve(static_cast<size_t>(threads));
    try {
        for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
    } catch (const std::system_error& error) {
        const size_t started = workers_.size();
        finish();  // no destructor runs for an object that was not made, and a thread must be joined
        throw Fault{.kind = FaultKind::Environment,
                    .what = std::string("a thread could not be started: ") + error.what(),
                    .found = std::to_string(started) + " started",
                    .expected = std::to_string(threads - 1),
                    .fix = "ask for fewer threads"};
    }
}

Pool::~Pool() { finish(); }

void Pool::finish() {
    stop_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void Pool::share(int64_t count, Call call, const void* body) {
    call_ = call;
    body_ = body;
    done_.store(0, std::memory_order_relaxed);
    ticket_.store(static_cast<uint64_t>(count) << 32, std::memory_order_release);
    epoch_.fetch_add(1);
    if (sleepers_.load() > 0) epoch_.notify_all();
    while (take(0)) {}
    for (int spins = 0; done_.load(std::memory_order_acquire) != static_cast<uint64_t>(count); ++spins) {
        if (spins < kSpinsToYield) pause();
        else std::this_thread::yield();
    }
}

bool Pool::take(int thread) {
    uint64_t ticket = ticket_.load(std::memory_order_relaxed);
    if (next_of(ticket) >= total_of(ticket)) return false;
    ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (next_of(ticket) >= total_of(ticket)) return false;
    call_(body_, static_cast<int64_t>(next_of(ticket)), thread);
    done_.fetch_add(1, std::memory_order_release);
    return true;
}

void Pool::work(int thread) {
    for (;;) {
        const uint32_t epoch = epoch_.load();
        if (stop_.load()) return;
        bool worked = false;
        for (int spin = 0; spin < kSpins && !worked; ++spin) {
            while (take(thread)) worked = true;
            pause();
        }
        if (worked) continue;
        // A job that came after `epoch` was read has changed it, and then wait() returns at once.
        sleepers_.fetch_add(1);
        epoch_.wait(epoch);
        sleepers_.fetch_sub(1);
    }
}

}  // namespace dflash
