"""A rank's black box: what it is doing, in a small mapped ring that others can read even when it is stopped or dead.

`ring` writes and reads records, `gauges` are the numbers of the progress line, `waiting` is for whom
it waits, `failure` is the last word of a rank that failed.
"""
