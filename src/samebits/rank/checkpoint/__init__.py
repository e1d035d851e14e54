"""Files that outlive a run: weights, and the state from which a run resumes.

format/    what is in a checkpoint: `State`, named tensors and JSON; files of tensors
weights/   models alone: `run.save_weights`, `samebits.load_weights`, `samebits checkpoint export`
parts/     one file for each kind of what is in a state, with both directions; `whole` has them together
store/     `run.save_state`, `run.load_state`; a folder of states, with a copy at a URL; written while training continues
when/      `States`, which the loop calls: a schedule, a signal, the time since the last one, a loss

Each knows those above it in this list.

What a state is on the disk and at a URL, in plain Python, is `protocol.state_files`. Nothing here reads or writes a pickle that
could run code.
"""
