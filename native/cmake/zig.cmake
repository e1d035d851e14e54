# Compiles native/ with zig's clang for another processor or an older C library than this machine's; shipping/wheels.py uses it.
#
# LOCKSTEP_ZIG is the program zig, LOCKSTEP_ARCH x86_64 or aarch64, LOCKSTEP_GLIBC the oldest C library that the result must
# run with. zig brings headers, a linker and libc++, which becomes part of the module: nothing is taken from this machine.
set(zig "$ENV{LOCKSTEP_ZIG}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR "$ENV{LOCKSTEP_ARCH}")
set(CMAKE_CXX_COMPILER "${zig}" c++ -target "$ENV{LOCKSTEP_ARCH}-linux-gnu.$ENV{LOCKSTEP_GLIBC}")
set(CMAKE_CXX_ARCHIVE_CREATE "\"${zig}\" ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "\"${zig}\" ranlib <TARGET>")
# nanobind expects Python.h to bring stdio.h, which it does not under the stable ABI; libstdc++ does, libc++ does not.
set(CMAKE_CXX_FLAGS_INIT "-include stdio.h")
