// The pool: every chunk is done exactly once and is done when run() returns, whether the workers spin, sleep or come late.
#include <chrono>
#include <cstdio>
#include <thread>
#include <vector>

#include "cpu/pool.hpp"

using dflash::Pool;

namespace {

int failures = 0;

void check(bool ok, const char* what, int threads, int64_t count) {
    if (!ok && ++failures < 10) std::fprintf(stderr, "FAILED: %s (%d threads, %d chunks)\n", what, threads, static_cast<int>(count));
}

// Plain, unsynchronised writes: only run() itself orders them, which the thread sanitizer checks.
void every_chunk_once(Pool& pool, int64_t count) {
    std::vector<int> done(static_cast<size_t>(count));
    bool thread_in_range = true;
    pool.run(count, [&](int64_t chunk, int thread) {
        ++done[static_cast<size_t>(chunk)];
        if (thread < 0 || thread >= pool.threads()) thread_in_range = false;
    });
    bool once = true;
    for (const int n : done) once = once && n == 1;
    check(once, "a chunk was not done exactly once", pool.threads(), count);
    check(thread_in_range, "a thread number is out of range", pool.threads(), count);
}

}  // namespace

int main() {
    for (const int threads : {1, 2, 3, 5}) {
        Pool pool(threads);
        if (pool.threads() != threads) return std::fprintf(stderr, "FAILED: %d threads, not %d\n", pool.threads(), threads), 1;
        for (int round = 0; round < 400; ++round) {
            every_chunk_once(pool, round % 9);
            if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(3));  // until they sleep
        }
        every_chunk_once(pool, 5000);
    }
    for (int i = 0; i < 50; ++i) Pool pool(3);  // ends while its workers start, spin or sleep
    {
        Pool pool(3);
        every_chunk_once(pool, 3);
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    return failures != 0;
}
