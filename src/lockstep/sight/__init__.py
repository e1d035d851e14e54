"""What can be seen of the ranks of a run from outside, without their help: journals, the kernel, stacks.

journals + /proc         -> one scene of each rank       scenes
a rank that is suspected -> samples of it, five a second      probe

What it means is decided in `lockstep.diagnosis`.
"""
