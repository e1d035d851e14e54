"""cuBLAS's variable is there before anything can be multiplied, or it is said that it came too late."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys

import pytest

from samebits.protocol import late_settings
from samebits.protocol.late_settings import TOO_LATE, WORKSPACE, WORKSPACE_SIZES, claim_workspace
from samebits.rank.init.numerics import set_numerics
from samebits.testing.ranks import Started, run_ranks


@pytest.mark.parametrize(
    ("present", "uses_cuda", "is_late", "value"),
    [
        ({}, False, False, WORKSPACE_SIZES),
        ({}, True, True, WORKSPACE_SIZES),
        ({WORKSPACE: ":16:8"}, True, False, ":16:8"),
    ],
)
def test_it_is_set_unless_it_is_set_and_late_where_a_gpu_was_used(present, uses_cuda, is_late, value):
    variables = dict(present)
    assert claim_workspace(variables, uses_cuda=uses_cuda) is is_late
    assert variables == {WORKSPACE: value}


def test_importing_samebits_sets_it():
    code = f"import samebits, os, sys; print(os.environ[{WORKSPACE!r}], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"import os; os.environ.pop({WORKSPACE!r}, None)\n{code}"], capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.split() == [WORKSPACE_SIZES, "False"]


def set_too_late(exact):
    late_settings.IS_LATE = True
    with contextlib.redirect_stderr(io.StringIO()) as said:
        set_numerics(1, exact=exact)
    return said.getvalue()


@pytest.mark.ranks
@pytest.mark.parametrize(("exact", "times"), [(True, 1), (False, 0)])
def test_exact_numerics_say_when_it_came_too_late(exact, times):
    [said] = run_ranks(set_too_late, Started(1), exact)
    assert said.count(TOO_LATE) == times
