"""Devices are pinned, never masked: each rank of a plain script has its own, and mistakes are sentences."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.launching import run_script, start_python, write_script

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
COUNT = torch.cuda.device_count()


def test_cuda_without_an_index_is_the_ranks_own_device(tmp_path: Path) -> None:
    script = """
        import os, torch
        assert torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"]), "nothing is masked"
        assert torch.ones(1).cuda().device.index == int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(0)
        assert torch.ones(1).cuda().device.index == 0, "the script's own choice wins"
    """
    ended = run_script(tmp_path, script, "-n", str(COUNT))
    assert ended.code == 0, ended.err
    assert torch.cuda.get_device_name(0) in ended.err, "devices have their names in the first line"


def test_a_device_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    ended = run_script(tmp_path, f"import torch; torch.cuda.set_device({COUNT})", "-q", "-n", "1")
    assert ended.code == 2
    assert "Traceback" not in ended.err
    assert f"torch.cuda.set_device({COUNT}): torch sees {COUNT} GPU" in ended.err


def test_spawn_works_after_cuda_was_used_and_refuses_cuda_tensors(tmp_path: Path) -> None:
    script = """
        import torch, samebits
        def train(rank, value):
            assert torch.ones(1).cuda().item() == 1
        on_device = torch.ones(1).cuda()
        samebits.spawn(train, args=(1,), nprocs=1)
        try:
            samebits.spawn(train, args=(on_device,), nprocs=1)
        except samebits.UsageError as error:
            print(error)
    """
    ended = start_python(tmp_path, write_script(tmp_path, script)).finish()
    assert ended.code == 0, ended.err
    assert ended.out.startswith("A CUDA tensor cannot be sent to the ranks, each of which has a device of its own.")
