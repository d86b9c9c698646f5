// A file mapped for reading, once and whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dflash {

class Mapping {
   public:
    Mapping() = default;  // nothing mapped
    // Throws Fault Input when the path cannot be opened or mapped, or is empty.
    explicit Mapping(const std::string& path);
    Mapping(Mapping&& other) noexcept;
    Mapping& operator=(Mapping&& other) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    const std::string& path() const { return path_; }
    uint64_t size() const { return size_; }

    // The bytes [offset, offset + count). Throws Fault Input when they are not all inside the file; the test
    // subtracts, so that no offset can wrap around. `name` is the tensor, for the message.
    const std::byte* bytes(uint64_t offset, uint64_t count, const std::string& name) const;

   private:
    std::string path_;
    std::byte* data_ = nullptr;
    uint64_t size_ = 0;
};

}  // namespace dflash
