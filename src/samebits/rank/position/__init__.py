"""Where the script is, and where its time goes.

`moment` is the place in the training loop, which decides what may be called there; `epoch_count` which epochs are done;
`step_timer` step, line and phase, for the journal and the clock; `metrics` what `run.log` writes, and other files that a
rank leaves in the run folder; `kept_values` what the script keeps in `run.state`.
"""
