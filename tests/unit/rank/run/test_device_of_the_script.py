"""The device that a script asks for is used, or refused; only a device on the command line beats it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from samebits.errors import UsageError
from samebits.launcher.sizing import Machine, Wish, size
from samebits.machine.cores import Cores
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.environment import Position, RankEnvironment, RankSettings
from samebits.protocol.layout.mesh import Form
from samebits.rank.run.decisions import Wanted, decide
from tests.support.promises import promise


def device_of(said: str | None, launched: str, *, given: bool) -> str:
    settings = RankSettings(Path("run"), threads=1, device=launched, device_given=given)
    wanted = Wanted(Form(), None, said, 1, 0, Arithmetic())
    return decide(RankEnvironment(Position(), settings), wanted, None).device.type


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in {"is_available": True, "device_count": 1, "init": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)


@pytest.mark.parametrize("said", ["cuda", "gpu"])
def test_a_gpu_that_is_not_there_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match=r'No GPU|`device` must be "cpu" or "cuda", but is \'gpu\''):
        device_of(said, "cpu", given=False)


@promise(
    "bad-input-and-what-a-person-is-told",
    "A device that the script asks for is used or refused, and only the command line's own beats it",
    also=["test_a_gpu_that_is_not_there_is_refused"],
)
@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("said", "launched", "given", "used"),
    [
        ("cpu", "cuda", False, "cpu"),
        ("cuda", "cpu", False, "cuda"),
        (None, "cuda", False, "cuda"),
        (None, "cpu", False, "cpu"),
        ("cpu", "cuda", True, "cuda"),
        ("cuda", "cpu", True, "cpu"),
    ],
)
def test_the_command_line_beats_the_script_and_its_default_does_not(
    said: str | None, launched: str, given: bool, used: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert device_of(said, launched, given=given) == used
    assert ("as the script says" in capsys.readouterr().err) is (used != launched)


@pytest.mark.parametrize(
    ("wish", "given"),
    [(Wish(), False), (Wish("1"), False), (Wish("cpu"), True), (Wish("gpu"), True), (Wish("1", "cpu"), True)],
)
def test_a_device_counts_as_named_where_somebody_named_it(wish: Wish, given: bool) -> None:
    assert size(wish, Machine(Cores(2, "affinity"), 1)).device_given is given
