"""The note that the feed adds to an exception of the user's data set, and the failure block reads."""

SAMPLE_NOTE = "lockstep: while fetching sample {index} of the data set"
"""A format with the data-set index."""
