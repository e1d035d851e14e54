"""What ranks record for `samebits verify`, `replay`, `bench` and `--trace`; an ordinary run records none of it.

after each step:    hashes of samples, gradients, parameters, ...  recorder, evidence_file
operators of one:   what each reads and writes, lane by lane       step_operators
one step again:     lanes, the debugger, for `samebits replay`     replayed
first pass:         each lane's gradients, for the row `plain`     evidence_file; calm switches noise off
bench:              when each step began and ended                 meter
--trace:            phases, lanes, buckets and waits               trace
"""
