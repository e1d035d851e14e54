"""The memory in which a state lies while a process writes it."""

import errno
import os
import resource
import secrets
from pathlib import Path

import pytest
import torch

from samebits.rank.checkpoint.store import writer_process
from samebits.rank.checkpoint.store.checkpointer import Pages
from samebits.rank.checkpoint.store.memory import CommonMemory, Mapped, MemoryFile, StateMemory
from samebits.rank.transport.alone import AloneTransport

PAGE = writer_process.mmap.PAGESIZE


def test_a_smaller_state_is_copied_after_one_that_could_not_be_mapped():
    memory, tensor = StateMemory(), torch.arange(16.0)
    memory.reserve(4096)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (1 << 20), limits[1]))
    try:
        with pytest.raises(OSError, match="memory"):
            memory.reserve(64 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    memory.reserve(4096)
    memory.mapped.put(64, tensor)
    assert os.pread(memory.descriptor, 64, 64) == tensor.numpy().tobytes()
    memory.close()


def test_a_copy_to_pages_that_a_thread_has_got_takes_no_faults():
    size = 32 << 20
    memory, tensor = StateMemory(), torch.ones(size, dtype=torch.uint8)
    memory.reserve(size, has_pages=False)
    pages = Pages(memory.mapped, [(100, size - 200), (size - 100, 100)])
    assert pages.are_there()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory.mapped.put(0, tensor)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100, "there are 8192 pages"
    assert os.pread(memory.descriptor, 4, size - 4) == b"\1" * 4
    memory.close()


def test_pages_that_could_not_be_had_are_reserved_before_a_copy():
    memory = StateMemory()
    memory.reserve(2 * PAGE, has_pages=False)
    os.ftruncate(memory.descriptor, PAGE)
    assert not Pages(memory.mapped, [(0, 2 * PAGE)]).are_there()
    memory.reserve(2 * PAGE)
    assert os.fstat(memory.descriptor).st_blocks * 512 == 2 * PAGE
    memory.close()


def test_memory_that_could_not_be_had_goes_as_a_whole(monkeypatch):
    memory, alone = CommonMemory(lambda _: ""), AloneTransport()
    assert not isinstance(memory.find(alone, [None], PAGE, has_pages=False), str)

    def full(*_):
        raise OSError(errno.ENOMEM, "there is none")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert memory.find(alone, [None], PAGE) == "there is none"
    assert memory.offer() is None, "the next state does not copy into pages that are not there"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4),
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(12, dtype=torch.float64).reshape(1, 3, 2, 2).to(memory_format=torch.channels_last),
        torch.tensor(3.0),
        torch.empty(0),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.nn.Parameter(torch.ones(5)),
    ],
    ids=["rows", "turned", "channels last", "a number", "empty", "conjugated", "parameter"],
)
def test_any_tensor_lies_there_as_in_a_file(tensor):
    memory = StateMemory()
    memory.reserve(4096)
    memory.mapped.put(128, tensor)
    expected = tensor.detach().resolve_conj().contiguous().numpy().tobytes()
    assert os.pread(memory.descriptor, len(expected), 128) == expected
    memory.close()


def test_another_process_writes_to_it_and_finds_nothing_else_in_its_place():
    memory = StateMemory()
    memory.reserve(4096)
    place = memory.place
    child = os.fork()
    if not child:
        Mapped.at(place).put(64, torch.full((4,), 7, dtype=torch.uint8))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.pread(memory.descriptor, 4, 64) == b"\x07" * 4
    for other in (
        MemoryFile("samebits-state-other", place.process, place.descriptor, place.size),
        MemoryFile(place.name, place.process, 1 << 20, place.size),
        MemoryFile(place.name, 1 << 30, place.descriptor, place.size),
    ):
        with pytest.raises(OSError, match="No such file"):
            Mapped.at(other)
    memory.close()


@pytest.mark.parametrize("size", [0, 1, PAGE - 1, PAGE, 3 * PAGE + 8, 8 * PAGE + 1])
@pytest.mark.parametrize("skipped", [0, 8])
def test_a_file_has_the_bytes_of_the_memory_whatever_its_size_and_wherever_it_lies(
    size, skipped, tmp_path, monkeypatch
):
    monkeypatch.setattr(writer_process, "PIECE_BYTES", 2 * PAGE)
    memory, told = StateMemory(), secrets.token_bytes(size)
    memory.reserve(PAGE + skipped + size)
    memory.write(PAGE + skipped, told)  # a disk refuses memory that begins inside a page, as it may refuse pages
    data = writer_process.Memory(memory.descriptor).bytes_to(PAGE + skipped + size)
    writer_process._write_file(data[PAGE + skipped :], tmp_path / "written")
    assert (tmp_path / "written").read_bytes() == told
    memory.close()
