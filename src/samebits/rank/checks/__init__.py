"""What every run watches while a script trains, to report what the script cannot have meant.

`unprepared_optimizers`: those that `prepare` did not take. `unreduced_metrics`: evaluations that nobody put together. `written_files`:
paths that several ranks write. `script_objects`: what else the script holds (averages, schedulers), for messages and
`verify`. `variables`: plain values in its variables, for `verify --interrupt`. `variables`: a name of what no state holds
(`samebits.rank.checks.script` finds them). Of plain scripts: `ddp_replicas`.
"""
