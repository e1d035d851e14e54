"""Public test kit: start real ranks inside a test, and compare bits.

`ranks` runs a function on N real processes; `faults` lets something happen to one rank at one step; `digests` hashes
models; `plugin` is for pytest and runs `samebits verify` in a test. The fake transport is `samebits.testing.fake_transport`.
"""
