"""`samebits audit`: parts of a recorded run are made again, and compared with what the record says.

checked.py   the record, its states and the script: what can be checked
plan.py      which segments, from which state each begins
compare.py   the first difference between two records, in words
audit.py     the runs
report.py    how it looks
"""
