// Whether one operation touches memory that another one uses.
#pragma once

#include "operation.hpp"

namespace lockstep {

// Whether `later` reads or writes what `earlier` writes, or writes what it reads: then it must not begin before
// `earlier` is finished on this rank.
bool depends_on(const Request& later, const Request& earlier, std::size_t world_size);

}  // namespace lockstep
