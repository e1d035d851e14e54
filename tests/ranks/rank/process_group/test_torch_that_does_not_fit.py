"""A torch that breaks samebits's process group, as torch 2.15 did: a group of one rank shows it before any waits."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from samebits.errors import UsageError
from samebits.rank.process_group import group, self_test
from samebits.rank.transport.local import shared_store
from samebits.testing.ranks import Started, run_ranks
from tests.support.launching import Finished, run_script
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

BROKEN = "Could not find the default backend type 0 for Process Group with name samebits."
BREAK = f"""
    from torch.distributed import distributed_c10d
    def made(*args, _make=distributed_c10d._new_process_group_helper, **kwargs):
        group, store = _make(*args, **kwargs)
        if group.name() == "samebits":
            raise RuntimeError({BROKEN!r})
        return group, store
    distributed_c10d._new_process_group_helper = made
"""
TRAIN = """
    import hashlib, json, torch, torch.distributed as dist, samebits
    run = samebits.init(seed=0, lanes=2, threads=1)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.arange(160.0).view(20, 8) / 100, torch.zeros(20, 2))
    model, optimizer, loader = run.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=7))
    for step in run.steps(loader):
        for x, y in step:
            run.backward((model(x) - y).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    dist.all_reduce(total := torch.ones(2))
    bits = hashlib.sha256(model.weight.detach().numpy().tobytes()).hexdigest()
    run.print(json.dumps([dist.get_backend(), total.tolist(), bits]))
"""
MEET = """
    import torch.distributed as dist
    dist.init_process_group("gloo")
    dist.barrier()
"""


def in_folder(folder: Path, script: str, *options: str) -> Finished:
    folder.mkdir()
    return run_script(folder, script, *options)


@promise(
    "the-backend-samebits-of-torch-distributed",
    "Where torch breaks the backend, a run goes over Gloo with the same bits and says so once, and "
    "`samebits doctor` makes the same trial",
    also=["test_a_torch_of_tomorrow_is_tried_and_what_a_run_does_then_is_said"],
)
def test_a_run_goes_on_over_gloo_with_the_same_bits_and_says_so_once(tmp_path: Path) -> None:
    fits, broken = (in_folder(tmp_path / name, begin + TRAIN, "-n", "2") for name, begin in (("a", ""), ("b", BREAK)))
    assert (fits.code, broken.code) == (0, 0), broken.err
    assert "torch.distributed uses Gloo" not in fits.err
    assert broken.err.count(f"does not work with torch {torch.__version__} (RuntimeError: {BROKEN[:-1]})") == 1
    backend, _, bits = json.loads(fits.out)
    assert backend == "samebits"
    assert json.loads(broken.out) == ["gloo", [2, 2], bits]


@pytest.mark.thorough
def test_asking_for_the_back_end_is_one_sentence(tmp_path: Path) -> None:
    ended = run_script(tmp_path, BREAK + MEET, "-q", "-n", "2", "--backend", "samebits")
    assert (ended.code, ended.out) == (2, "")
    assert re.match(r"FAILED    rank \d: The backend samebits does not work with torch", ended.err)
    assert re.search(r"^  help    .*\), or gloo\.$", ended.err, re.MULTILINE), ended.err


def a_script_of_another_launcher(folder: str) -> None:
    """Found when the backend is imported; a group of another backend works afterwards; nothing is left of the trial."""
    made, hook = distributed_c10d._new_process_group_helper, sys.excepthook

    def breaks(*args: object, **kwargs: object) -> object:
        group, store = made(*args, **kwargs)
        if group.name() == "samebits":
            raise RuntimeError(BROKEN)
        return group, store

    self_test._found.cache_clear()
    distributed_c10d._new_process_group_helper = breaks
    assert BROKEN[:-1] in self_test.group_problem()
    assert (dist.is_initialized(), sys.excepthook) == (False, hook)
    how = {"rank": 0, "world_size": 1}
    with pytest.raises(UsageError, match="does not work with torch"):
        dist.init_process_group("samebits", init_method=f"file://{folder}/first", **how)
    dist.init_process_group("gloo", init_method=f"file://{folder}/second", **how)
    dist.all_reduce(one := torch.ones(1))
    assert one.item() == 1
    dist.destroy_process_group()


@promise(
    "the-backend-samebits-of-torch-distributed",
    "A torch that breaks the backend is found before the ranks join: asking for the backend is one "
    "sentence, under another launcher too",
    also=["test_asking_for_the_back_end_is_one_sentence"],
)
def test_a_script_under_another_launcher_hears_it_when_it_asks_for_the_back_end(tmp_path: Path) -> None:
    run_ranks(a_script_of_another_launcher, Started(1), str(tmp_path))


def a_fit() -> list[object]:
    told = self_test.group_problem()
    return [told, dist.is_initialized(), group._withdrawn, shared_store.store_trouble()]


def test_this_torch_fits() -> None:
    assert run_ranks(a_fit, Started(1)) == [["", False, [], ""]]


STORE = """
    from samebits.rank.transport.local.shared_store import SharedStore
    SharedStore.compare_set = lambda self, key, expected, desired: desired.decode()  # what another torch might want
"""


@pytest.mark.thorough
def test_ranks_meet_through_a_file_where_torch_cannot_use_a_store_in_python(tmp_path: Path) -> None:
    ended = run_script(tmp_path, STORE + TRAIN, "-n", "2")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)[:2] == ["gloo", [2, 2]]
    assert ended.err.count("does not work with torch") == 1
    plain = in_folder(tmp_path / "plain", STORE + MEET, "-n", "2")
    assert plain.code == 0, plain.err
