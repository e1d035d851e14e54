"""Accelerate's Accelerator with equal bits: `from lockstep.integrations.accelerate import Accelerator`."""

from lockstep.integrations.accelerate.accelerator import Accelerator as Accelerator
