#include "engine/mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/error.hpp"

namespace dflash {
namespace {

struct Descriptor {
    int fd = -1;
    explicit Descriptor(int f) : fd(f) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd >= 0) close(fd);
    }
};

[[noreturn]] void refuse(const std::string& path, const std::string& what, const std::string& found) {
    throw Fault{
        .kind = FaultKind::Input, .what = what, .found = found, .where = path, .expected = "a readable GGUF file"};
}

}  // namespace

Mapping::Mapping(const std::string& path) : path_(path) {
    const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    struct stat info {};
    if (file.fd < 0 || fstat(file.fd, &info) != 0) refuse(path, "the file cannot be opened", std::strerror(errno));
    if (!S_ISREG(info.st_mode) || info.st_size <= 0)
        refuse(path, "there is nothing to map", "not a regular file, or empty");
    void* p = mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (p == MAP_FAILED) refuse(path, "the file cannot be mapped", std::strerror(errno));
    data_ = static_cast<std::byte*>(p);
    size_ = static_cast<uint64_t>(info.st_size);
}

Mapping::Mapping(Mapping&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

Mapping::~Mapping() {
    if (data_) munmap(data_, size_);
}

const std::byte* Mapping::bytes(uint64_t offset, uint64_t count, const std::string& name) const {
    if (offset > size_ || count > size_ - offset)
        throw Fault{.kind = FaultKind::Input,
                    .what = "a tensor's data lies outside the file",
                    .found = "offset " + std::to_string(offset) + ", " + std::to_string(count) + " bytes",
                    .where = path_ + ": " + name,
                    .expected = "within " + std::to_string(size_) + " bytes"};
    return data_ + offset;
}

}  // namespace dflash
