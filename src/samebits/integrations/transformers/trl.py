"""TRL's trainers whose loss is made of what other processes compute at the same time."""

from __future__ import annotations

from samebits.errors import UsageError

WHY = {
    "KTOTrainer": "estimates its KL term from the batches that all processes have at the same time",
    "GRPOTrainer": "scales advantages by rewards of the batches that all processes have at the same time",
    "BCOTrainer": "shifts rewards by a mean over the batches that all processes have at the same time",
}


def refuse_trl(kind: type) -> None:
    """Raise `UsageError` for a class that is built on one of them: their calls look like those that only log."""
    for one in kind.__mro__:
        if one.__name__ in WHY and one.__module__.partition(".")[0] == "trl":
            raise UsageError(
                f"TRL's {one.__name__} {WHY[one.__name__]}, so its loss depends on the number of processes.",
                "Use it without TrainerMixin, or a trainer whose loss is made of a batch alone: DPO, ORPO, CPO, RLOO.",
            )
