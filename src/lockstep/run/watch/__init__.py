"""What every run watches while a script trains, to report what the script cannot have meant.

`strangers`: optimizers that `prepare` did not take. `shares`: evaluations that nobody put together. `written_files`:
paths that several ranks write. `holdings`: what else the script holds (averages, schedulers), for messages and
`verify`. `variables`: plain values in its variables, for `verify --interrupt`. What nobody but the script keeps, so that a
new rank or a snapshot would lack it: `carried` (variables, by `flow` in the source of its loops), `own_values` (wherever they lead
to, by `marks`; `module_attributes` of models). Of plain scripts: `ddp_replicas`.
"""
