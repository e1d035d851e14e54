"""Accelerate and the Trainer on ranks that share a GPU: what they exchange lies on it, and a loss is logged as what it is."""

import re

import pytest

from benchmarks.gpu_day.integrations import ACCELERATED, TRAINER
from tests.pretend.surroundings import surroundings
from tests.support.environment import ROOT
from tests.support.launching import start
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def ended_on(ranks, place, program, *words):
    """What the program printed, on so many ranks of one GPU."""
    shared = {**surroundings(1), "SAMEBITS_SHARE_GPU": "4", "HF_HUB_OFFLINE": "1"}
    shared["PYTHONPATH"] += f":{ROOT}"
    ended = start(place, "-n", str(ranks), "--device", "cuda", program, *words, env=shared).finish()
    assert ended.code == 0, ended.err
    [last] = re.findall("on cuda.*", ended.out)
    return last, ended


def test_accelerates_evaluation_gathers_what_is_on_a_shared_gpu(tmp_path):
    pytest.importorskip("accelerate")
    one, _ = ended_on(1, tmp_path, ACCELERATED, "bf16")
    assert one.endswith("over 37")
    assert ended_on(2, tmp_path, ACCELERATED, "bf16")[0] == one


@promise(
    "inside-accelerate-and-the-trainer",
    "In half precision on pretended GPUs the Trainer logs losses without their scale",
)
@pytest.mark.thorough
def test_the_trainer_in_half_precision_logs_losses_without_their_scale(tmp_path):
    pytest.importorskip("transformers")
    one, ended = ended_on(1, tmp_path, TRAINER, "gpt2", "fp16")
    losses = [float(number) for number in re.findall(r"'loss': '([^']*)'", ended.out)]
    assert len(losses) == 4
    assert all(5.0 < loss < 6.0 for loss in losses), losses
    assert "left before the end of its epoch" not in ended.err
    assert ended_on(2, tmp_path, TRAINER, "gpt2", "fp16")[0] == one
