"""Runs that `verify` and `bench` make of a user's script, all from one nursery.

with workplace (a private view of the files, else a copy):      workplace
for each run:
Trials.run(label, ranks, lanes, evidence) -> Trial      trials: folder, ending, what it left
the folders of the runs go, or are kept where one failed        trials
"""
