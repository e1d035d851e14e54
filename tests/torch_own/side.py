"""One process that runs torch's tests over one backend: `python -m tests.torch_own.side NAME FD`, names on stdin.

torch's file is imported as it is; it learns the backend's name from its variable `BACKEND`. During the import the name
is Gloo's, and then one that makes groups of the backend asked for and also equals Gloo's, so no test is left out or cut
short because of a name. Ranks are forked, not spawned, which saves an import of torch for each. A test that torch runs
on GPUs alone is let in, with devices replaced by the CPU.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
import unittest
from collections.abc import Callable
from typing import Any

import torch
from torch.testing._internal import common_distributed

from tests.peers.outcome import reason
from tests.torch_own.on_the_cpu import on_the_cpu

FOR_GPUS = "is_for_gpus"
GATES = ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu")
"""Decorators with arguments that let a test pass only where GPUs are; `skip_if_no_gpu` has none."""


class NameLikeGloo(str):
    """A backend's name that also compares equal to Gloo's."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def _let_in(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def with_devices_replaced(*arguments: Any, **named: Any) -> Any:
        if arguments[0].rank == arguments[0].MAIN_PROCESS_RANK:
            return test(*arguments, **named)
        with on_the_cpu():
            return test(*arguments, **named)

    setattr(with_devices_replaced, FOR_GPUS, True)
    return with_devices_replaced


def tests_over(backend: str) -> type[unittest.TestCase]:
    """torch's tests as a class of this process."""
    for gate in GATES:
        setattr(common_distributed, gate, lambda *_, **__: _let_in)
    common_distributed.skip_if_no_gpu = _let_in
    common_distributed.init_multigpu_helper = lambda world_size, _: {rank: [rank] for rank in range(world_size)}
    os.environ["BACKEND"], os.environ["INIT_METHOD"] = "gloo", "file://"
    from torch.testing._internal.distributed import distributed_test

    if backend != "gloo":
        import samebits.torch_backend  # noqa: F401 - makes the name known
    distributed_test.BACKEND = NameLikeGloo(backend)

    class Own(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            distributed_test.INIT_METHOD = os.environ["INIT_METHOD"]  # the file that torch made for this test
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        def run_test(self, *arguments: Any) -> None:
            made = distributed_test.dist.get_backend_config()
            if not made.startswith(f"cpu:{backend}"):
                raise RuntimeError(f"the group that is tested is {made} and not of {backend}")
            super().run_test(*arguments)

    return Own


def run(test: unittest.TestCase) -> dict[str, Any]:
    """One test's outcome, as a line for the process that asked."""
    result, began = unittest.TestResult(), time.monotonic()
    unittest.TestSuite([test]).run(result)
    state, why = "passed", ""
    if result.failures or result.errors:
        text = (result.failures + result.errors)[0][1]
        print(text, flush=True)
        state, why = "failed", reason(text)
    elif result.skipped:
        state, why = "skipped", result.skipped[0][1]
    return {"state": state, "why": why, "seconds": time.monotonic() - began}


def main(backend: str, descriptor: str) -> None:
    """Run the named tests; without names, tell which there are, and which are for GPUs."""
    asked = sys.stdin.read().split()
    own = tests_over(backend)
    with os.fdopen(int(descriptor), "w", buffering=1) as answers:
        os.set_inheritable(int(descriptor), False)
        if not asked:
            names = unittest.defaultTestLoader.getTestCaseNames(own)
            told = {name: bool(getattr(getattr(own, name), FOR_GPUS, False)) for name in names}
            print(json.dumps(told), file=answers)
        for name in asked:
            with contextlib.redirect_stderr(sys.stdout):
                print(f"--- {name}", flush=True)
                print(json.dumps(run(own(name))), file=answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
