// Whether one operation touches memory that another one uses.
#pragma once

#include "operation.hpp"

namespace samebits {

// Whether `later` reads or writes what `earlier` writes, or writes what it reads: then it must not begin before
// `earlier` is finished on this rank.
bool depends_on(const Request& later, const Operation& earlier, std::size_t world_size);

// Whether writing its results on this rank may change inputs that others or this rank have yet to read. In-place use
// does not count: a sum over its own terms, a part that is already where it ends.
bool spoils_its_inputs(const Request& request, std::size_t rank, std::size_t world_size);

// Whether any output overlaps any input, in place or not.
bool overlaps_itself(const Request& request, std::size_t world_size);

// Have the operation read copies of its inputs, made now.
void copy_inputs(Operation& operation, std::size_t world_size);

// Whether outputs of the operation overlap. They arrive in no fixed order, and the last of them in the list counts.
bool spoils_its_outputs(const Request& request, std::size_t world_size);

// Have the operation write elsewhere; `deliver`, at its end, puts the results in their places, in the order of the
// list.
void redirect_outputs(Operation& operation, std::size_t world_size);
void deliver(Operation& operation);

}  // namespace samebits
