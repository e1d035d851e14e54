"""Public test kit: start real ranks inside a test, and compare bits.

`ranks` runs a function on N real processes; `digests` hashes models. The fake transport is `lockstep.transport.fake`.
"""
