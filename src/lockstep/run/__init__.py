"""The run that the user's script holds: where rank, strategy and feed meet.

`run` is the facade, `step` a step and its lanes, `evaluation` plain iteration of a prepared loader, `place` where in
the loop the script is, `tally` metrics whose bits do not depend on the ranks, `rows` gathering in data-set order,
`weights` and `state` files and `resume` from them, `metrics` what `run.log` writes, `ledger` the journal and the times, `witness` what `verify` records.
"""
