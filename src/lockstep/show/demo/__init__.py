"""`lockstep demo`: a training whose ranks anybody may kill, beside the same one undisturbed."""

from lockstep.show.demo.demo import Demo

__all__ = ["Demo"]
