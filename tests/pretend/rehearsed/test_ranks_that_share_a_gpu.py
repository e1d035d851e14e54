"""Several ranks on one GPU exchange through host memory, and have the bits of one rank."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samebits
from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts.scenarios import Cnn, train
from tests.support.launching import run_script

pytestmark = pytest.mark.ranks
LAYERS = (nn.Linear(64, 300), nn.ReLU(), nn.Dropout(0.2), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))


def on_one_gpu(share="4"):
    torch.cuda.device_count = lambda: 1
    os.environ["SAMEBITS_SHARE_GPU"] = share


def ordinary():
    on_one_gpu()
    return train(Cnn)


def in_stages():
    """A loop for every strategy, pipelines too; each loss is of the parameters that all steps before have made."""
    on_one_gpu()
    run = samebits.init(seed=3, lanes=4)
    model = nn.Sequential(nn.Flatten(), *LAYERS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = torch.utils.data.TensorDataset(torch.randn(96, 1, 8, 8), torch.randint(0, 10, (96,)))
    model, optimizer, loader = run.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=32))
    losses = []
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(step.loss.hex())
    assert run.device == torch.device("cuda", 0)
    assert run.sum(torch.ones(2, device=run.device)).tolist() == [run.world_size] * 2
    return losses


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("ddp", 4),
        ("zero1", 2),
        ("pipeline", 2),
    ],
)
def test_ranks_on_one_gpu_have_the_bits_of_one_rank(strategy, ranks):
    script = ordinary if strategy in ("ddp", "zero1") else in_stages
    [alone] = run_ranks(script, Started(1))
    assert run_ranks(script, Started(ranks, form=Form(strategy))) == [alone] * ranks


def too_many():
    on_one_gpu("2")
    samebits.init(lanes=3)


def test_more_ranks_than_may_share_are_refused_with_the_way_out():
    with pytest.raises(
        RankFailed, match=r"3 ranks need one GPU each, but .* 1\. .*SAMEBITS_SHARE_GPU=3 lets ranks share"
    ):
        run_ranks(too_many, Started(3))


def test_ranks_of_several_nodes_do_not_share():
    with pytest.raises(
        RankFailed, match=r"Ranks can share a GPU on one node only, but 2 of 4 are on this one, which has 1\."
    ):
        run_ranks(ordinary, Started(4, nodes=(2, 2)))


def test_the_launcher_refuses_and_names_the_variable_with_which_ranks_share(tmp_path):
    script = "import samebits; run = samebits.init(); print(run.device, run.world_size)"
    alone = {"CUDA_VISIBLE_DEVICES": "0"}
    refused = run_script(tmp_path, script, "-n", "2", "--device", "cuda", env=alone)
    assert refused.code == 2
    assert "2 ranks need 2 GPUs, but there is 1 here." in refused.err
    assert "SAMEBITS_SHARE_GPU=2 lets ranks share it, for tests and proofs." in refused.err
    shared = run_script(tmp_path, script, "-n", "2", "--device", "cuda", env=alone | {"SAMEBITS_SHARE_GPU": "2"})
    assert shared.code == 0, shared.err
    assert "2 ranks on cuda:0 (Pretended H100), shared through host memory" in shared.err
    assert shared.out.splitlines() == ["cuda:0 2"]
