"""Models on several GPUs of one process: cut into stages by samebits, or put there by their author."""

import pytest
import scenarios_on_gpu
import torch

from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs"),
]
ALONE = Form()
STAGES = Form("model_parallel")


def run(path, epochs, *places, ranks=1, form=ALONE):
    """With dropout, unless the author has put the model on two devices, each of which has its own random numbers."""
    started = Started(ranks, lanes=4, device="cuda", form=form)
    return run_ranks(scenarios_on_gpu.layered, started, str(path), epochs, 0.0 if places else 0.2, *places)


def test_stages_on_several_gpus_have_the_bits_of_one_gpu_and_go_on_with_them(tmp_path):
    [(bits, loss, _)] = run(tmp_path / "one", 2)
    [(staged_bits, staged_loss, devices)] = run(tmp_path / "all", 2, form=STAGES)
    assert (staged_bits, staged_loss) == (bits, loss)
    assert len(devices) >= 2
    run(tmp_path / "resumed", 1, form=STAGES)
    assert run(tmp_path / "resumed", 2, form=STAGES)[0][0] == bits


def test_stages_go_on_from_the_state_of_one_gpu(tmp_path):
    [(bits, *_)] = run(tmp_path / "one", 2)
    run(tmp_path / "resumed", 1)
    assert run(tmp_path / "resumed", 2, form=STAGES)[0][0] == bits


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero1"])
def test_a_model_that_its_author_put_on_two_gpus_has_the_bits_of_one(tmp_path, strategy):
    expected = run(tmp_path / "one", 2, 0, 0)[0]
    (bits, loss, devices) = run(tmp_path / "two", 2, 0, 1, form=Form(strategy))[0]
    assert (bits, loss) == expected[:2]
    assert {"cuda:0", "cuda:1"} <= set(devices)
    run(tmp_path / "resumed", 1, 0, 1, form=Form(strategy))
    assert run(tmp_path / "resumed", 2, 0, 1, form=Form(strategy))[0][0] == bits


@pytest.mark.parametrize("strategy", ["model_parallel", "dp"])
def test_a_strategy_that_chooses_devices_refuses_a_model_that_its_author_put_on_two(tmp_path, strategy):
    with pytest.raises(RankFailed, match=f"Layered is on several devices already, but {strategy} chooses the device"):
        run(tmp_path / "two", 1, 0, 1, form=Form(strategy))
