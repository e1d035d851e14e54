// The algorithms of collective operations.
#pragma once

#include "group.hpp"

namespace samebits {

// Throws BadCall when the request cannot be right on any rank.
void check_request(const Request& request, std::size_t rank, std::size_t world_size);

// Whether the operation's numbers travel inside the rows. The same on every rank whose description is the same.
bool is_tiny(const Request& request, std::size_t world_size);

// Whether everyone's arrival is all it takes: there are no numbers, or they are tiny.
bool ends_with_arrivals(const Request& request, std::size_t world_size);

// Copies this rank's tiny numbers into its row; returns the number of bytes.
std::size_t write_payload(const Request& request, std::size_t rank, std::size_t world_size, std::byte* payload);

// Begins, once every rank has arrived and all descriptions agree. The task is empty when nothing is left to do.
Task start(Group& group, Operation& operation);

// (((0 1) (2 3)) ...): the lane tree over `num_leaves` leaves, see docs/design/lanes.md.
std::vector<std::uint8_t> tree_program(std::size_t num_leaves);

}  // namespace samebits
