"""The launcher's loop over the ranks of one run.

start every rank, say so when all have begun      starting, starting (what they meet through)
loop:                                             supervisor
message of the nursery: a rank ended          -> ../verdict, ../stopping decide; the supervisor acts
output of a rank                              -> ../screen
a moment has passed: gauges, decisions        observer
                     a rank is waited for     stalls; ../../sight sees, ../../diagnosis decides
a signal                                      -> ../stopping
"""
