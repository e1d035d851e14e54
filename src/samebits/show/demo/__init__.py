"""`samebits demo`: a training whose ranks anybody may kill, beside the same one undisturbed."""

from samebits.show.demo.demo import Demo

__all__ = ["Demo"]
