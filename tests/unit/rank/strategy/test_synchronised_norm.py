"""SyncBatchNorm works with one lane per rank on GPUs, and is refused in one sentence elsewhere."""

import pytest
import torch
from torch import nn

from samebits.protocol.layout.cut import Cut
from samebits.protocol.layout.mesh import Form, choose_mesh
from samebits.rank.run.prepare.refusals import objection_to_lanes, objection_to_steps
from samebits.rank.strategy.norm import has_synchronised_norm
from tests.support.promises import promise


@promise(
    "never-a-silent-wrong-gradient",
    "SyncBatchNorm with a different number of lanes than ranks, on the CPU, or with an empty lane is "
    "refused before the first step",
)
@pytest.mark.parametrize(
    ("form", "ranks", "lanes", "device", "sentence"),
    [
        (Form(), 4, 4, "cuda", ""),
        (Form(), 1, 1, "cpu", ""),
        (Form(), 1, 4, "cpu", "only with one lane per rank, but there are 4 lanes on 1 ranks."),
        (Form(), 2, 4, "cuda", "4 lanes on 2 ranks."),
        (Form(), 2, 2, "cpu", "needs GPUs, but the ranks are on the CPU. Use BatchNorm"),
        (Form("model_parallel"), 2, 2, "cuda", "2 lanes on 2 ranks of 2 stages each."),
    ],
)
def test_it_needs_one_lane_per_rank_and_gpus(form, ranks, lanes, device, sentence):
    told = objection_to_lanes(choose_mesh(form, ranks), lanes, device)
    assert (told is not None) == bool(sentence)
    assert sentence in str(told)


def test_ranks_that_share_a_gpu_cannot_have_it():
    told = objection_to_lanes(choose_mesh(Form(), 2), 2, "cuda", shares=True)
    assert str(told).startswith(
        "torch's SyncBatchNorm needs a GPU for each rank, but ranks share one here. Use BatchNorm"
    )


def test_a_step_that_leaves_a_rank_without_samples_is_refused_before_it_begins():
    cut = Cut(32, 4)
    assert objection_to_steps([cut.sizes(32), cut.sizes(26)]) is None
    mistake = objection_to_steps([cut.sizes(32), cut.sizes(10)])
    assert mistake is not None
    assert "step 2 has 10 samples, so 2 of 4 lanes are empty" in mistake.problem
    assert mistake.fix == "Use drop_last=True."


def test_it_is_found_wherever_it_lies_in_a_model_and_alone_it_is_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4)))
    assert not has_synchronised_norm([model])
    inputs = torch.randn(8, 3)
    alone = model(inputs)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert has_synchronised_norm([nn.ReLU(), model])
    assert torch.equal(model(inputs), alone)
