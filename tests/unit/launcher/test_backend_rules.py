"""What --backend replaces, and what it refuses before anything starts."""

from __future__ import annotations

import pytest

from samebits.errors import UsageError
from samebits.launcher.spawn.spawn import spawn
from samebits.protocol.backends import backend_for, check_backend, is_ours


@pytest.mark.parametrize(
    ("asked", "wanted", "device", "gets"),
    [
        ("gloo", "", "cpu", "gloo"),
        (None, "", "cpu", None),
        ("gloo", "samebits", "cpu", "samebits"),
        ("Gloo", "samebits", "cpu", "samebits"),
        ("cpu:gloo", "samebits", "cpu", "samebits"),
        (None, "samebits", "cpu", "samebits"),
        ("nccl", "gloo", "cpu", "gloo"),
        ("samebits", "gloo", "cpu", "gloo"),
        ("cpu:gloo,cuda:nccl", "samebits", "cpu", "cpu:gloo,cuda:nccl"),
        ("of the script's own", "samebits", "cpu", "of the script's own"),
        ("nccl", "samebits", "cuda", "nccl"),
        (None, "gloo", "cuda", None),
        ("gloo", "samebits", "cuda", "samebits"),
        ("gloo", "nccl", "cuda", "nccl"),
    ],
)
def test_a_single_known_back_end_is_replaced_where_the_other_can_do_its_work(
    asked: str | None, wanted: str, device: str, gets: str | None
) -> None:
    assert backend_for(asked, wanted, device) == gets


@pytest.mark.parametrize(
    ("name", "device", "compiled", "sentence"),
    [
        ("glue", "cpu", True, "There is no backend 'glue'. Use one of samebits, gloo, nccl, mpi."),
        ("samebits", "cpu", False, "The backend samebits needs the compiled part of samebits"),
        ("nccl", "cpu", True, "The backend nccl needs a GPU for each rank"),
    ],
)
def test_what_cannot_work_is_refused(name: str, device: str, compiled: bool, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_backend(name, device, compiled)
    check_backend("gloo", device, compiled)


def test_our_back_end_is_found_in_every_spelling() -> None:
    assert [is_ours(name) for name in ("samebits", "SAMEBITS", "cpu:samebits,cuda:nccl", "gloo", "", None)] == [
        *(True, True, True),
        *(False, False, False),
    ]


def test_spawn_refuses_a_back_end_before_it_starts_anything():
    with pytest.raises(UsageError, match="There is no backend 'glue'"):
        spawn(print, nprocs=2, device="cpu", backend="glue")
