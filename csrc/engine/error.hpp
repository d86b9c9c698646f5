// The one thing the engine throws: the five parts of a DflashError and the class it becomes in Python.
#pragma once

#include <string>

namespace dflash {

// Named as the Python classes in convert/errors.py; the exit code belongs to them.
enum class FaultKind { Bug, Usage, Input, Environment };

struct Fault {
    FaultKind kind = FaultKind::Bug;
    std::string what = {};
    std::string found = {};
    std::string where = {};
    std::string expected = {};
    std::string fix = {};
};

}  // namespace dflash
