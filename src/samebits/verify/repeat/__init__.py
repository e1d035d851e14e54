"""`samebits verify` of a script without our calls: runs are compared with runs, as the script is started without us.

one run: the command, its files, its time limit      started
what it finds at its standard input                  terminal
what its processes recorded, read back               recorded
all runs, the comparison, what helps                 repeat
which causes are worth a try, in which order         causes
the first operator that differs                      operators
one step's operators, in a file for another machine  one_step, saved_operators
-> Repeated, shown                                   result, report

In the script's own Python `samebits.witness` listens.
"""
