"""Scripts that know nothing of lockstep, on GPUs, under `lockstep run`."""

import pytest

from tests.support.launching import run_script

pytestmark = pytest.mark.ranks


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


def test_ranks_are_started_only_on_gpus_that_are_visible(tmp_path):
    ended = run_script(tmp_path, "print('never')", "-n", "3", "--device", "cuda", env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert ended.code == 2
    assert "never" not in ended.out
    assert "GPU" in ended.err
