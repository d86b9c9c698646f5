// Threads and scratch memory of the CPU backend.
#pragma once

#include <memory>

#include "cpu/pool.hpp"
#include "engine/ops.hpp"

namespace dflash {

// Memory that grows to the largest request and stays; 64-byte aligned.
class Scratch {
  public:
    std::byte* get(int64_t bytes) {
        if (bytes > size_) {
            data_.reset();
            data_.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlign)));
            size_ = bytes;
        }
        return data_.get();
    }

  private:
    static constexpr std::align_val_t kAlign{64};
    struct Free {
        void operator()(std::byte* p) const { ::operator delete(p, kAlign); }
    };
    std::unique_ptr<std::byte, Free> data_;
    int64_t size_ = 0;
};

struct Context {
    explicit Context(int threads) : pool(threads) {}
    Pool pool;
    Scratch rows;    // quantised activations, partial results
    Scratch working;  // per thread
};

}  // namespace dflash
