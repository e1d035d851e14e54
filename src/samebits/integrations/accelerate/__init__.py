"""Accelerate's Accelerator with equal bits: `from samebits.integrations.accelerate import Accelerator`."""

from samebits.integrations import require

require("accelerate", "1.10", "1.16")

from samebits.integrations.accelerate.accelerator import Accelerator as Accelerator  # noqa: E402 - a sentence comes first
