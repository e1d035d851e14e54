"""Branches and steps that are passed over, in the loops of Accelerate and the Trainer."""

from pathlib import Path

import pytest

from tests.ranks.integrations import test_accelerate, test_trainer
from tests.support.launching import Finished, run_script, said
from tests.support.promises import promise

pytest.importorskip("transformers")
pytestmark = pytest.mark.ranks


def accelerated(place: Path, processes: int, *options: str, words: str = "", rate: str = "1e-2") -> Finished:
    text = test_accelerate.TRAIN.replace("lr=1e-2", f"lr={rate}")
    return run_script(place, text, "-n", str(processes), *options, env={"HF_HUB_OFFLINE": "1", "OPTIONS": words})


def trained(place: Path, processes: int, *options: str, rate: str = "1e-2", words: str = "") -> Finished:
    text = test_trainer.TRAIN.replace("learning_rate=1e-2", f"learning_rate={rate}")
    variables = {"HF_HUB_OFFLINE": "1", "KIND": "gpt2", "OPTIONS": words}
    return run_script(place, text, "-n", str(processes), *options, env=variables)


@promise(
    "inside-accelerate-and-the-trainer",
    "`--skip-steps` and `--from` with Accelerate, and `--from` with the Trainer: equal bits on 1, 2 and 4 processes",
    also=["test_a_branch_of_the_trainer"],
)
def test_steps_are_passed_over_with_accelerate(tmp_path):
    skips = ("--skip-steps", "1:1,4:5,15:15")
    one = test_accelerate.told(accelerated(tmp_path, 1, *skips))
    assert one != test_accelerate.told(accelerated(tmp_path, 1))
    assert test_accelerate.told(accelerated(tmp_path, 2, *skips)) == one
    assert test_accelerate.told(accelerated(tmp_path, 4, *skips, words="kill7")) == one


def test_a_branch_with_accelerate(tmp_path):
    saves = ("--save-every", "2steps", "--keep", "9")
    whole = test_accelerate.told(accelerated(tmp_path, 2, "--name", "exp1", *saves))
    same = accelerated(tmp_path, 1, "--from", "exp1@8", "--name", "same")
    assert test_accelerate.told(same) == whole
    refused = accelerated(tmp_path, 1, "--from", "exp1@8", "--name", "b1", rate="2e-2")
    assert refused.code == 2
    assert "Add --fresh lr" in refused.err
    fresh = ("--fresh", "lr", "--skip-steps", "9:10")
    one = test_accelerate.told(accelerated(tmp_path, 1, "--from", "exp1@8", "--name", "b2", *fresh, rate="2e-2"))
    two = test_accelerate.told(accelerated(tmp_path, 4, "--from", "exp1@8", "--name", "b3", *fresh, rate="2e-2"))
    assert one == two != whole


@pytest.mark.thorough
def test_a_branch_of_the_trainer(tmp_path):
    saves = ("--save-every", "2steps", "--keep", "9")
    whole = test_trainer.logged(trained(tmp_path, 2, "--name", "exp1", *saves))
    same = test_trainer.logged(trained(tmp_path, 1, "--from", "exp1@6", "--name", "same"))
    assert same == whole
    refused = trained(tmp_path, 1, "--from", "exp1@6", "--name", "b1", rate="2e-2")
    assert refused.code == 2
    assert "--fresh lr" in refused.err
    fresh = ("--from", "exp1@6", "--fresh", "lr")
    one = test_trainer.logged(trained(tmp_path, 1, *fresh, "--name", "b2", rate="2e-2"))
    assert one != whole
    assert test_trainer.logged(trained(tmp_path, 2, *fresh, "--name", "b3", rate="2e-2")) == one


def test_the_trainer_passes_over_no_steps(tmp_path):
    refused = trained(tmp_path, 1, "--skip-steps", "3:4")
    assert refused.code == 2
    assert "The Trainer counts its own steps" in refused.err
    assert "logged" not in refused.out
    assert said(refused, "skips") == ["the samples of steps 3 to 4"]
