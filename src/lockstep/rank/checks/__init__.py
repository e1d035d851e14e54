"""What every run watches while a script trains, to report what the script cannot have meant.

`strangers`: optimizers that `prepare` did not take. `shares`: evaluations that nobody put together. `written_files`:
paths that several ranks write. `holdings`: what else the script holds (averages, schedulers), for messages and
`verify`. `variables`: plain values in its variables, for `verify --interrupt`. `variables`: a name of what no state holds
(`lockstep.rank.checks.script` finds them). Of plain scripts: `ddp_replicas`.
"""
