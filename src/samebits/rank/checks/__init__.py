"""What every run watches while a script trains, to report what the script cannot have meant.

`look/`: what the script keeps itself, found by looking twice. `unprepared_optimizers`: those that `prepare` did not take.
`unreduced_metrics`: evaluations that nobody put together. `written_files`: paths that several ranks write. Of plain scripts:
`ddp_replicas`.
"""
