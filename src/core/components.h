// The names and versions of the libraries that are compiled in.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace robocache {

using Components =
    std::vector<std::pair<std::string, std::string>>;  // (name, version), named as in licenses/components.toml

// A linked library reports its own version, because the header may be of another one. A header-only library has the version
// of its header.
Components components();

// The additional libraries of a build with CUDA; otherwise empty.
Components cuda_components();

}  // namespace robocache
