"""What ranks record for `lockstep verify` and `lockstep bench`; an ordinary run makes none of it.

after each step:    hashes of samples, gradients, parameters, ...  recorder, evidence_file
first pass:         each lane's gradients, for the row `plain`     evidence_file; calm switches noise off
one run, watched:   tensors that lanes hand to each other          lane_watch
bench:              when each step began and ended                 meter
"""
