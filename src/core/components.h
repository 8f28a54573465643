// Whose code is compiled in besides ours, and in which version.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace robocache {

using Components =
    std::vector<std::pair<std::string, std::string>>;  // (name, version), named as in licenses/components.toml

// A library that is linked says its own version: the header may be another's. What is only included has its header's version.
Components components();

// What a build with CUDA has in addition; empty without.
Components cuda_components();

}  // namespace robocache
