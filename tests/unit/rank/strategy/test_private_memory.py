"""Zeros of one process, small and in huge pages."""

import copy
import io
from pathlib import Path

import pytest
import torch

from samebits.rank.strategy.replica.memory import HUGE_PAGE, private_zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("num_bytes", [0, 16, HUGE_PAGE - 8, HUGE_PAGE, HUGE_PAGE + 8, 3 * HUGE_PAGE + 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_they_are_zeros_of_the_size_and_type_that_was_asked_for(num_bytes, dtype):
    zeros = private_zeros(num_bytes // dtype.itemsize, dtype, CPU)
    assert zeros.shape == (num_bytes // dtype.itemsize,)
    assert zeros.dtype is dtype
    assert not zeros.any()
    assert zeros.storage_offset() == 0
    assert zeros.untyped_storage().nbytes() == num_bytes


def test_large_ones_begin_a_huge_page_and_end_where_they_should():
    first, other = (private_zeros(HUGE_PAGE // 4 + 2, torch.float32, CPU) for _ in range(2))
    assert first.data_ptr() % HUGE_PAGE == other.data_ptr() % HUGE_PAGE == 0
    first.fill_(1.0)
    assert not other.any()
    assert bool((first == 1.0).all())


def test_huge_pages_that_come_slowly_are_given_up_and_the_memory_is_the_same(monkeypatch):
    times = iter(range(1000))
    monkeypatch.setattr("samebits.rank.strategy.replica.memory.time.perf_counter", lambda: next(times))
    zeros = private_zeros(4 * HUGE_PAGE // 4 + 2, torch.float32, CPU)
    assert next(times) == 2, "nothing is touched after a page that took a second"
    assert zeros.data_ptr() % HUGE_PAGE == 0
    assert not zeros.any()
    zeros.fill_(1.0)


def test_a_large_one_is_copied_and_saved_like_any_tensor():
    zeros = private_zeros(HUGE_PAGE, torch.float32, CPU)
    zeros[-1] = 3.0
    file = io.BytesIO()
    torch.save(zeros, file)
    file.seek(0)
    clone = copy.deepcopy(zeros)
    zeros[-1] = 4.0
    assert torch.load(file)[-1] == 3.0
    assert clone[-1] == 3.0


def test_its_memory_goes_with_its_last_view():
    before = _mapped()
    views = [private_zeros(HUGE_PAGE, torch.float32, CPU)[7:9] for _ in range(50)]
    assert _mapped() > before + 300
    views.clear()
    assert _mapped() < before + 20


def _mapped():
    """Virtual memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * 4 // 1024
