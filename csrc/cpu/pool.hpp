// A few threads that share the chunks of one job at a time. Chunks are independent, so who takes which changes nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace dflash {

class Pool {
  public:
    explicit Pool(int threads);  // the caller of run() is one of them; 1 starts none
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls body(chunk, thread) for chunk in [0, count), thread in [0, threads()); returns when all are done.
    // One caller at a time; body neither throws nor calls run().
    template <class Body>
    void run(int64_t count, const Body& body) {
        if (workers_.empty() || count <= 1) {
            for (int64_t i = 0; i < count; ++i) body(i, 0);
            return;
        }
        using Plain = std::remove_cvref_t<Body>;
        share(count, [](const void* b, int64_t chunk, int thread) { (*static_cast<const Plain*>(b))(chunk, thread); }, &body);
    }

  private:
    using Call = void (*)(const void* body, int64_t chunk, int thread);
    void share(int64_t count, Call call, const void* body);
    bool take(int thread);  // does one chunk; false when none is left
    void work(int thread);
    void finish();  // ends and joins the workers

    // Chunks of the current job: total in the high half, next free in the low half. A thread may read the job only
    // while it holds a chunk, and run() returns only when every chunk is done, so the job never changes under it.
    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<uint64_t> done_{0};
    alignas(64) std::atomic<uint32_t> epoch_{0};  // sleepers wait for it to change
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    Call call_ = nullptr;
    const void* body_ = nullptr;
    std::vector<std::thread> workers_;
};

}  // namespace dflash
