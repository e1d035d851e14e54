#pragma once

namespace samebits::portable {

// Ends the process with exit code 2 and a sentence: nothing that comes after would have the portable bits.
[[noreturn]] void give_up(const char* what, const char* name);

}  // namespace samebits::portable
