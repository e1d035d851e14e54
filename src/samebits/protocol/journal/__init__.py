"""A rank's black box: what it is doing, in a small mapped ring that others can read even when it is stopped or dead.

`ring` writes and reads records, `gauges` has the numbers of the progress line and for whom the rank waits, `failure` is the last word of a rank that failed.
"""
