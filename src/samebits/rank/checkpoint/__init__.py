"""Files that outlive a run: weights, and the state from which a run resumes.

what     state/     `State`: what is in a checkpoint; collected, turned into named tensors and JSON, saved by `run.save_state`
where    store/     `Store`: a folder of states, on a disk, in shared memory, with a copy at a URL; written while training continues
when     trigger/   `Trigger`: a schedule, a signal, the time since the last one, a loss
back     load/      everything is read and checked, then everything changes
weights  weights/   models alone: `run.save_weights`, `samebits.load_weights`, `samebits checkpoint export`

What a state is on the disk and at a URL, in plain Python, is `protocol.state_files`. Nothing here reads or writes a pickle that
could run code.
"""
