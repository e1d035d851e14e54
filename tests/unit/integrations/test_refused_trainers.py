"""Trainers of TRL whose loss depends on other processes are refused by name, and what is built on them."""

import pytest

pytest.importorskip("transformers")

from samebits.errors import UsageError
from samebits.integrations.transformers.trl import WHY, refuse_trl


@pytest.mark.parametrize("name", WHY)
def test_a_trainer_whose_loss_needs_other_processes_is_refused(name):
    theirs = type(name, (), {"__module__": "trl.trainer.some"})
    with pytest.raises(UsageError, match=f"TRL's {name} .* depends on the number of processes"):
        refuse_trl(type("Mine", (theirs,), {}))


def test_others_are_not():
    refuse_trl(type("SFTTrainer", (), {"__module__": "trl.trainer.sft_trainer"}))
    refuse_trl(type("KTOTrainer", (), {"__module__": "own"}))
