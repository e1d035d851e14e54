"""Known answers of numerics="portable", and what a script may prepare."""

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from samebits.errors import UsageError
from samebits.protocol.portable import portable_variables
from samebits.rank.portable import known_answers as answers
from samebits.rank.portable.operators import lift
from samebits.rank.portable.prepared import look_at
from samebits.rank.portable.process import _without_onednn
from tests.support.portable import needs_portable
from tests.support.promises import promise


def in_a_process(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "samebits.rank.portable", *([code] if code else [])],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_portable
def test_this_machine_gives_the_recorded_answers_whatever_the_user_has_set():
    done = in_a_process("", MKL_CBWR="AVX512", ATEN_CPU_CAPABILITY="avx512", OMP_NUM_THREADS="2")
    assert json.loads(done.stdout)["answers"] == answers.recorded()[answers.torch_version()]
    assert "starts again" in done.stderr


def test_an_unheld_process_differs_or_its_answers_would_say_nothing():
    known = answers.recorded()[answers.torch_version()]
    found = answers.answers()
    assert found.keys() == known.keys()
    assert {name for name in known if found[name] != known[name]} >= {"matrix products float32 (OpenBLAS)"}


ROUNDED = """
import torch
x = torch.arange(1, 40001, dtype=torch.float32) / 997 + 1
for function in (torch.acosh, torch.asinh):
    print(int((function(x) != function(x.double()).float()).sum()))
"""


@needs_portable
@pytest.mark.thorough
def test_functions_of_libm_in_single_precision_are_those_in_double_precision_rounded():
    held, unheld = (
        subprocess.run([sys.executable, "-c", ROUNDED], env=variables, capture_output=True, text=True, check=True)
        for variables in ({**os.environ, **portable_variables(os.environ)}, os.environ)
    )
    assert held.stdout.split() == ["0", "0"]
    assert "0" not in unheld.stdout.split()


@promise(
    "on-every-x86-64-cpu",
    "An answer that is not the recorded one stops the run before it trains, with the kernel's name; an "
    "operator without a check raises by its name when it is called",
    also=["test_an_operator_that_is_not_covered_is_refused_by_name"],
)
def test_a_wrong_answer_stops_the_run_by_name(monkeypatch):
    known = answers.recorded()[answers.torch_version()]
    monkeypatch.setattr(answers, "answers", lambda: known)
    answers.refuse_wrong_answers()
    monkeypatch.setattr(answers, "answers", lambda: {**known, "attention": "0"})
    with pytest.raises(UsageError, match=r"attention of \d+ known answers differ"):
        answers.refuse_wrong_answers()


def test_a_torch_without_answers_is_refused_with_those_that_have_some(monkeypatch):
    monkeypatch.setattr(answers, "torch_version", lambda: "9.9.9")
    with pytest.raises(UsageError, match=r"no known answers for torch 9\.9\.9, only for .*2\.13\.0"):
        answers.refuse_wrong_answers()


def test_answers_leave_random_numbers_and_threads_as_they_are():
    torch.manual_seed(3)
    first, threads = torch.rand(1), torch.get_num_threads()
    torch.manual_seed(3)
    answers.answers()
    assert torch.equal(torch.rand(1), first)
    assert torch.get_num_threads() == threads


@pytest.fixture(autouse=True)
def _lifted() -> Iterator[None]:
    yield
    lift()


def test_float16_is_refused_and_what_the_lane_does_not_hold_is_said():
    assert not look_at([nn.Linear(2, 2).double(), DataLoader(TensorDataset(torch.ones(2)))])
    assert not look_at([nn.Linear(2, 2).bfloat16()])
    with pytest.raises(UsageError, match="weight of Linear is float16"):
        look_at([nn.Linear(2, 2).half()])

    module = types.ModuleType("someones_data")
    exec("import scipy.signal\nfrom torch.utils.data import Dataset\nclass Own(Dataset): pass", vars(module))
    sys.modules[module.__name__] = module
    try:
        own: Dataset[object] = module.Own()
        own.__class__.__len__ = lambda _: 1
        said = look_at([DataLoader(own)])
    finally:
        del sys.modules[module.__name__]
    assert len(said) == 1
    assert "Own is written with SciPy" in said[0]


def test_lstms_in_several_threads_leave_onednn_as_it_was():
    together = Barrier(4)

    def lstm():
        together.wait(60)
        return torch.backends.mkldnn.enabled

    with ThreadPoolExecutor(4) as pool:
        assert not any(pool.map(lambda _: _without_onednn(lstm)(), range(200)))
    assert torch.backends.mkldnn.enabled
