// Owned memory for activations and caches: zeroed, aligned to 64 bytes, move-only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "engine/error.hpp"

namespace dflash {

// `count` values of T, all zero. calloc, because its pages are not touched before they are used: a cache of the
// whole context costs what was written to it.
template <typename T>
class Buffer {
   public:
    Buffer() = default;
    explicit Buffer(int64_t count) : count_(count) {
        if (count <= 0) return;
        const auto n = static_cast<size_t>(count);
        raw_ = n > (SIZE_MAX - kAlign) / sizeof(T) ? nullptr : std::calloc(1, n * sizeof(T) + kAlign);
        if (!raw_)
            throw Fault{.kind = FaultKind::Environment,
                        .what = "not enough memory for the runtime's buffers",
                        .found = std::to_string(n) + " values of " + std::to_string(sizeof(T)) + " bytes refused",
                        .fix = "lower the maximum context or the ring"};
        size_t space = n * sizeof(T) + kAlign;
        void* p = raw_;
        data_ = static_cast<T*>(std::align(kAlign, n * sizeof(T), p, space));
    }
    Buffer(Buffer&& other) noexcept { swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
        Buffer moved(std::move(other));
        swap(moved);
        return *this;
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(raw_); }

    T* data() { return data_; }
    const T* data() const { return data_; }
    T* row(int64_t i, int64_t width) { return data_ + i * width; }
    int64_t size() const { return count_; }
    T& operator[](int64_t i) { return data_[i]; }

   private:
    static constexpr size_t kAlign = 64;
    void swap(Buffer& other) noexcept {
        std::swap(raw_, other.raw_);
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }
    void* raw_ = nullptr;
    T* data_ = nullptr;
    int64_t count_ = 0;
};

}  // namespace dflash
