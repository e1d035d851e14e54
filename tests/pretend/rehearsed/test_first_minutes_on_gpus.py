"""What many scripts do in their first minute on GPUs: default devices, TF32, a matmul too early, losses over pictures."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.cuda import scenarios_on_gpu
from tests.support.launching import run_script

pytestmark = pytest.mark.ranks


def test_ranks_without_samples_gather_with_the_others():
    told = run_ranks(scenarios_on_gpu.gathered_from_few, Started(3, lanes=3))
    assert sorted(told) == [(0, (1, 1), "cuda"), (0, (1, 1), "cuda"), (1, (1, 1), "cuda")]


def train(default, is_early):
    """With another default device, TF32 by its new name, and a product of matrices before the run begins."""
    if is_early:
        assert (torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")).sum() == 8
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    run = samebits.init(seed=0, lanes=2)
    model, values = nn.Linear(4, 2), torch.randn(16, 4)
    if default:
        torch.set_default_device(default)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(values, values[:, :2].argmax(1)), batch_size=4)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model)


def test_a_default_device_tf32_and_an_early_matmul_change_nothing():
    [expected] = run_ranks(train, Started(1, lanes=2), None, False)
    assert run_ranks(train, Started(2, lanes=2), "cuda", True) == [expected] * 2


ALLOWED = """
    import torch, torch.nn as nn, torch.nn.functional as F, samebits
    from torch.utils.data import DataLoader, TensorDataset
    run = samebits.init(seed=1, lanes=4)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 1, 4, 4), torch.randint(0, 3, (16, 4, 4)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8))
    for step in run.steps(loader):
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()
    try:
        torch.histc(torch.ones(3, device="cuda"))
    except RuntimeError as error:
        run.print(str(error).split(",")[0])
"""


def test_a_loss_over_pictures_may_be_allowed_and_nothing_else_is(tmp_path):
    bits = set()
    for ranks in "12":
        (folder := tmp_path / ranks).mkdir()
        ended = run_script(folder, ALLOWED, "-n", ranks, "--allow", "nll_loss2d")
        assert ended.code == 0, ended.err
        assert "histc_cuda does not have a deterministic implementation" in ended.out
        bits.add(ended.bits)
    assert len(bits) == 1


@pytest.mark.thorough
def test_stages_on_several_gpus_of_a_process_and_allowed_operators_do_not_go_together(tmp_path):
    ended = run_script(tmp_path, ALLOWED, "-n", "1", "--strategy", "model_parallel", "--allow", "nll_loss2d")
    assert ended.code == 2
    assert "`allow` (nll_loss2d) needs one device in each process, but the model is on several here." in ended.err


def test_ddp_over_nccl_has_the_gradients_of_all_ranks(tmp_path):
    script = """
        import os, torch, torch.distributed as dist
        dist.init_process_group()
        rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(rank)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda(), device_ids=[rank])
        for _ in range(2):
            net.zero_grad()
            net(torch.ones(1, 2).cuda() * (1 + rank)).sum().backward()
        print(sorted({round(value, 3) for value in net.module.weight.grad.flatten().tolist()}))
        dist.destroy_process_group()
    """
    ended = run_script(tmp_path, script, "-n", "2")
    assert ended.code == 0, ended.err
    assert "2 ranks on cuda:0 to cuda:1 (Pretended H100)" in ended.err
    assert ended.out.splitlines() == ["[1.5]"]
    assert "[1.5]" in ended.log(1)
