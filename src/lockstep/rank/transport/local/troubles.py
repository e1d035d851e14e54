"""What the compiled part reports: the codes of native/src/errors.hpp, as far as they mean different exceptions."""

from __future__ import annotations

LOST, DISAGREEMENT, ABORTED, NO_MEMORY = 1, 2, 4, 5

SAME_CALLS = "Make the same calls in the same order on every rank."
"""The fix of a disagreement."""

SHUT_DOWN = "The group was shut down on this rank."
"""What it says where nothing but this rank's own leaving has failed."""
