"""Accelerate's Accelerator with equal bits: `from lockstep.integrations.accelerate import Accelerator`."""

from lockstep.integrations import require

require("accelerate", "1.10", "1.16")

from lockstep.integrations.accelerate.accelerator import Accelerator as Accelerator  # noqa: E402 - a sentence comes first
