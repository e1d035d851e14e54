"""Under which keys a rank tells things of its own at the end of a pass, between those of its lanes (0 and above)."""

ASKED = -1
"""The signal because of which the run is to save and end."""
SNAPSHOT = -2
"""That a snapshot is due."""
CHECKED = -3
"""Rank 0's bits; rank r has `CHECKED - r`, so nothing else may be below."""
