"""GPUs that lie in host memory: the device's paths on a machine without one.

`native/device.cpp` is a `cuda` device for a CPU build of torch, and `native/nccl.cpp` stands in for NCCL; `build.py`
compiles both. `site/` lets a process believe in them, with all that it starts. `python -m tests.pretend` runs pytest so.

What they show: tensors left on the wrong device, results that are read before somebody waits for them, seeds, fresh
memory that is read, the number of waits, operations without a deterministic form. What they cannot show: the bits of
CUDA's kernels, kernels that run beside each other, NCCL itself, speed.
"""
