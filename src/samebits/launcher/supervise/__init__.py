"""The launcher's loop over the ranks of one run.

start every rank, say so when all have begun      starting
loop:                                             supervisor
message of the nursery: a rank ended          -> ../verdict decides; the supervisor acts
output of a rank                              -> ../terminal
a moment has passed: gauges, decisions        observer
                     a rank is waited for     stalls; ../diagnosis sees and decides
a signal                                      -> ../verdict
"""
