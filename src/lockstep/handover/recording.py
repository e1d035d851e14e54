"""Words of the recordings that ranks make for `lockstep verify` and that `prove` reads."""

from __future__ import annotations

AT_END = 1 << 62
"""The step of what was recorded behind the last step: after all steps, so that sorting works."""
NAN_MARK = " nan"
"""Stands behind the hash of a tensor with a NaN in it."""
