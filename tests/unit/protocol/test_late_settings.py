"""Settings that come too late are named."""

import pytest

from samebits.protocol import late_settings
from tests.support.launching import start, write_script


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(late_settings, "_at_start", None)


def test_only_what_libraries_read_while_loading_counts():
    late_settings.remember({"OMP_NUM_THREADS": "1", "HOME": "/root", "MKL_CBWR": "AVX2"})
    now = {"OMP_NUM_THREADS": "4", "HOME": "/tmp", "LD_PRELOAD": "x.so", "TORCH_NCCL_ENABLE_MONITORING": "0"}
    assert late_settings.came_too_late(now, on_gpu=False) == ["LD_PRELOAD", "MKL_CBWR", "OMP_NUM_THREADS"]


def test_a_fresh_interpreter_has_nothing_to_compare():
    assert late_settings.came_too_late({"OMP_NUM_THREADS": "4"}, on_gpu=True) == []


def test_settings_of_the_allocator_matter_on_gpus():
    late_settings.remember({})
    now = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUDA_VISIBLE_DEVICES": "1"}
    assert late_settings.came_too_late(now, on_gpu=True) == ["PYTORCH_CUDA_ALLOC_CONF"]
    assert late_settings.came_too_late(now, on_gpu=False) == []


SCRIPT = """
    import os
    os.environ["OMP_NUM_THREADS"] = "7"
    import samebits
    run = samebits.init()
"""


PLAIN = """
    import os
    os.environ["OMP_NUM_THREADS"] = os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1" + os.environ["OMP_NUM_THREADS"]
    import torch.distributed as dist
    dist.init_process_group("gloo")
"""


@pytest.mark.ranks
def test_a_script_without_init_is_told_when_it_makes_its_group(tmp_path):
    run = start(tmp_path, "-n", "2", write_script(tmp_path, PLAIN)).finish()
    assert run.code == 0, run.err
    assert run.err.count("OMP_NUM_THREADS, TORCHINDUCTOR_MAX_AUTOTUNE changed after torch was loaded") == 1


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.parametrize("fresh", [False, True])
def test_a_script_is_told_and_fresh_is_the_way_out(tmp_path, fresh):
    run = start(tmp_path, "-n", "1", *["--start-method=spawn"] * fresh, write_script(tmp_path, SCRIPT)).finish()
    assert run.code == 0, run.err
    assert ("OMP_NUM_THREADS changed after torch was loaded" in run.err) is not fresh
