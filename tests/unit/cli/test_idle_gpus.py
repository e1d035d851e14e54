"""A GPU that stays idle is said by each command that chooses the device, unless it is to be quiet."""

import pytest

from samebits.cli import program
from samebits.cli.program import machine_for
from samebits.machine.no_gpu import Signs, why_none

SAID = "is a CPU build, which cannot use the GPU of this machine."


@pytest.mark.parametrize(("device", "is_quiet", "is_said"), [("auto", False, True), ("auto", True, False), ("cpu", False, False), ("cuda", False, False)])  # fmt: skip
def test_it_is_said_to_whoever_leaves_the_choice_and_wants_to_hear(device, is_quiet, is_said, monkeypatch, capfd):
    signs = Signs(1, is_there=True, without_driver=False, driver="")
    monkeypatch.setattr(program, "why_none", lambda variables: why_none(variables, signs))
    machine = machine_for(device, is_quiet=is_quiet)
    said = " ".join(capfd.readouterr().err.split())
    assert (SAID in said) is is_said
    assert (SAID in machine.no_gpu.problem) is (device != "cpu")
