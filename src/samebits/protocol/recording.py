"""Words of the recordings that ranks make for `samebits verify` and `replay`, and that `verify/` reads."""

REPLAY = "replay"
"""The key of what `samebits replay` wants of ranks."""
BODY = -1
"""In place of the number of a lane, for operators outside of lanes."""
AT_END = 1 << 62
"""The step number of what was recorded after the last step: above all steps, so that sorting works."""
NAN_MARK = " nan"
"""Follows the hash of a tensor with a NaN in it."""
