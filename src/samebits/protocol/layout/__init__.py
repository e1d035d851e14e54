"""The pure arithmetic of who has what: samples in lanes, lanes on ranks, the lane tree, chunks of parameters.

Nothing here imports torch, reads a clock, or touches a file. Each file holds one noun; each invariant that a
docstring states is a property test in `tests/unit/`.
"""
