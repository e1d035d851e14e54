# Compiles native/ with zig's clang for another processor or an older C library than this machine's; shipping/wheels.py uses it.
#
# SAMEBITS_ZIG is the program zig, SAMEBITS_ARCH x86_64 or aarch64, SAMEBITS_GLIBC the oldest C library that the result must
# run with. zig brings headers, a linker and libc++, which becomes part of the module: nothing is taken from this machine.
set(zig "$ENV{SAMEBITS_ZIG}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR "$ENV{SAMEBITS_ARCH}")
set(CMAKE_CXX_COMPILER "${zig}" c++ -target "$ENV{SAMEBITS_ARCH}-linux-gnu.$ENV{SAMEBITS_GLIBC}")
set(CMAKE_CXX_ARCHIVE_CREATE "\"${zig}\" ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "\"${zig}\" ranlib <TARGET>")
# nanobind expects Python.h to bring stdio.h, which it does not under the stable ABI; libstdc++ does, libc++ does not.
set(CMAKE_CXX_FLAGS_INIT "-include stdio.h")
