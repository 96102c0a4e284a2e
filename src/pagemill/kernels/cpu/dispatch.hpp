// Which instruction sets this machine can run, and the choice between them.
#pragma once

#include <string>
#include <vector>

#include "isa.hpp"

namespace pagemill {

// Of those built, the sets that the processor and the operating system can run, best first.
const std::vector<const Isa*>& supported_isas();

// From now on current_isa() is the set of that name, or the best supported one if it is empty.
// Returns an empty string, or why not, with the names that would do. Not while kernels run.
std::string select_isa(const std::string& name);

}  // namespace pagemill
