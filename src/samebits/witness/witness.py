"""What optimizers do in this process: gradients before each update, and all that has changed after it.

A step ends when a parameter is about to be updated again. That holds for one optimizer, for several in turn, for one per
parameter, and for an optimizer around another. The process ends when it begins the step after the last one that is wanted.
"""

from __future__ import annotations

import atexit
import multiprocessing
import multiprocessing.util
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.hooks import RemovableHandle

from .evidence import EvidenceFile, rank
from .moved import in_commit
from .names import Names
from .operators import Operators, keep_compiled_regions

STATE_EVERY = 10
"""Optimizer states are recorded in the first step, in each tenth and in the last: they are large, and what is wrong in them
is in the parameters one step later."""


@dataclass(frozen=True)
class Wanted:
    """What is to be recorded."""

    folder: str
    steps: int
    norms: bool = False
    operators_of: int | None = None
    """The step whose operators are recorded."""
    values_of: int | None = None
    """The operator among them whose results are written."""
    moved: Sequence[str] | None = None
    """The top of the user's tree, and of the commit that is imported from instead."""


class Threads:
    """Which threads of the script update: steps of two at once have no order that another run repeats."""

    def __init__(self) -> None:
        self._last: threading.Thread | None = None
        self._there: list[threading.Thread] = []
        """All that lived at the last update."""

    def at_once(self) -> list[str]:
        """The names of two that may do so, of which this is the second; empty where each waits for the other. Called before each update.

        One that began when the first had ended waited for it. So did one that the main thread has started since its own last
        update, as long as the main thread makes no other.
        """
        living, main = threading.enumerate(), threading.main_thread()
        here = next((one for one in living if one.ident == threading.get_ident()), None)
        # In threads of autograd's own, where hooks may update, nobody runs who is not waited for.
        if here is None or isinstance(here, threading._DummyThread):
            return []
        last, there = self._last, self._there
        self._last, self._there = here, living
        if last is None or here is last:
            return []
        may_both = (here is not main and here in there) or (last is not main and last.is_alive())
        return [last.name, here.name] if may_both else []


class Witness:
    """Listens to all optimizers of this process."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._names = Names()
        self._file: EvidenceFile | None = None
        self._pid = os.getpid()
        self._step = 1
        self._updated: set[int] = set()
        """Parameters that were updated in this step."""
        self._optimizers: dict[int, tuple[Optimizer, int]] = {}
        self._is_over = False
        self._spent_s = 0.0
        self._began_s = 0.0
        self._operators: Operators | None = None
        self._hooks: list[RemovableHandle] = []
        self._has_left = False
        self._threads = Threads()
        self._lock = threading.RLock()
        """Threads take turns in the hooks."""
        self._exit = os._exit
        self._seeds = Seeds()
        self._has_workers = False
        """Whether other processes of the script were there at the first update."""
        self._updates, self._updates_of_a_step = 0, 0
        """In this step so far, and in the one before."""

    def listen(self) -> None:
        """Listen to every update from now on."""
        self._hooks = [
            register_optimizer_step_pre_hook(_eager(self._before)),
            register_optimizer_step_post_hook(_eager(self._after)),
        ]
        os._exit = self._hear_exit  # type: ignore[assignment]
        os.register_at_fork(after_in_child=self._renew_lock)
        if self._wanted.operators_of is not None:
            keep_compiled_regions()
        if self._wanted.operators_of == 1:
            self._begin_operators()

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def _hear_exit(self, status: int) -> None:
        """In the place of `os._exit`, which calls nothing at the end of a process."""
        self._at_exit(is_normal=False)
        self._exit(status)

    def stop(self) -> None:
        """Listen no more."""
        for hook in self._hooks:
            hook.remove()
        os._exit = self._exit

    def _before(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        with self._lock:
            self._begin_update(optimizer)

    def _begin_update(self, optimizer: Optimizer) -> None:
        if self._is_over:
            self._leave()
        if at_once := self._threads.at_once():
            self._is_over = True
            self._opened().write({"threads": at_once})
            # Other threads, and other ranks, would wait for this one.
            self._leave_at_once(1)
        parameters = _parameters_of(optimizer)
        if not self._updated.isdisjoint(map(id, parameters)):
            self._end_step()
        began_s = time.perf_counter()
        with _quiet():
            self._record_before(optimizer, parameters)
        self._spent_s += time.perf_counter() - began_s

    def _record_before(self, optimizer: Optimizer, parameters: Sequence[Tensor]) -> None:
        file = self._opened()
        before = {id(one) for one in parameters if not self._names.knows(one)}
        self._names.learn(parameters)
        if self._step == 1:
            file.tensor_items((f"initial {self._names.of(one)}", one) for one in parameters if id(one) in before)
        fresh = [one for one in parameters if one.grad is not None and id(one) not in self._updated]
        file.tensor_items((f"gradient {self._names.of(one)}", one.grad) for one in fresh if one.grad is not None)
        file.tensor_items((f"buffer {name}", tensor) for name, tensor in self._names.buffers())
        self._optimizers.setdefault(id(optimizer), (optimizer, len(self._optimizers) + 1))

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        began_s = time.perf_counter()
        with self._lock, _quiet():
            file, parameters = self._opened(), _parameters_of(optimizer)
            # An optimizer may go on changing what the one inside it has updated.
            file.tensor_items(((f"parameter {self._names.of(one)}", one) for one in parameters), are_newer=True)
            self._updated.update(map(id, parameters))
            self._updates += 1
            if self._step in (1, self._wanted.steps) or self._step % STATE_EVERY == 0:
                self._record_state(file, optimizer)
        self._spent_s += time.perf_counter() - began_s
        self._bound_operators()

    def _bound_operators(self) -> None:
        """Those of a step begin behind the first update of the step before, and end behind its own last one."""
        wanted = self._wanted.operators_of
        if self._operators is not None and self._step == wanted and self._updates == self._updates_of_a_step:
            self._end_operators()
        elif self._operators is None and wanted is not None and self._step == wanted - 1 and self._updates == 1:
            self._begin_operators()

    def _record_state(self, file: EvidenceFile, optimizer: Optimizer) -> None:
        number = self._optimizers[id(optimizer)][1]
        prefix = f"optimizer {number}: " if number > 1 else "optimizer "
        for place, group in enumerate(optimizer.param_groups):
            of_group = f" of group {place}" if len(optimizer.param_groups) > 1 else ""
            for key, value in group.items():
                if key != "params":
                    file.state_items(f"{prefix}{key}{of_group}", value)
        for parameter in _parameters_of(optimizer):
            for key, value in (optimizer.state.get(parameter) or {}).items():
                file.state_items(f"{prefix}{key} of {self._names.of(parameter)}", value)

    def _end_step(self) -> None:
        """Write the step; raise SystemExit behind the last one."""
        began_s = time.perf_counter()
        if self._step == self._wanted.operators_of:
            self._end_operators()
        file = self._opened()
        file.flush(self._step)
        file.write({"last": self._step})
        self._updated.clear()
        self._updates_of_a_step, self._updates = self._updates, 0
        self._spent_s += time.perf_counter() - began_s
        if self._step >= self._wanted.steps:
            self._finish(is_cut=True)
            self._leave()
        self._step += 1

    def _begin_operators(self) -> None:
        values_of = self._wanted.values_of
        self._operators = Operators(
            Path(self._wanted.folder), rank(), ("", values_of) if values_of is not None else None
        )
        self._operators.begin()

    def _end_operators(self) -> None:
        if self._operators is not None:
            self._operators.end()
            self._operators = None

    def _opened(self) -> EvidenceFile:
        # A process that was forked off a listening one begins with its own steps.
        if self._file is None or self._pid != os.getpid():
            if self._pid != os.getpid():
                self._pid, self._step, self._spent_s = os.getpid(), 1, 0.0
                self._updates, self._updates_of_a_step = 0, 0
            self._began_s = time.perf_counter()
            self._seeds.mark()
            self._has_workers = bool(multiprocessing.active_children())
            self._file = EvidenceFile(Path(self._wanted.folder), rank(), facts(), norms=self._wanted.norms)
            atexit.register(self._at_exit)
            # A process that multiprocessing has forked calls nothing else at its end.
            multiprocessing.util.Finalize(None, self._at_exit, exitpriority=0)
        return self._file

    def _at_exit(self, *, is_normal: bool = True) -> None:
        """The script has ended by itself."""
        if self._pid != os.getpid():
            # A process that was forked off and does not train, such as a loader's worker, has the operators of this one.
            return
        self._end_operators()
        if not self._is_over and self._file is not None and self._updated:
            with _quiet():
                for optimizer, _ in self._optimizers.values():
                    self._record_state(self._file, optimizer)
            self._file.flush(self._step)
            self._file.write({"last": self._step})
            self._finish(is_cut=False, is_normal=is_normal)

    def _finish(self, *, is_cut: bool, is_normal: bool = True) -> None:
        self._is_over = True
        took_s = time.perf_counter() - self._began_s
        times = {"normal": is_normal, "spent_s": self._spent_s, "took_s": took_s}
        end = {"end": self._step, "cut": is_cut, **times, "workers": self._has_workers, "drawn": self._seeds.drawn()}
        self._opened().write({**end, "not_moved": not_moved(*self._wanted.moved)} if self._wanted.moved else end)

    def _leave(self) -> None:
        """End the process as if the script had called `sys.exit`; a script that goes on all the same is ended outright."""
        is_second, self._has_left = self._has_left, True
        if is_second or threading.current_thread() is not threading.main_thread():
            self._leave_at_once(0)
        raise SystemExit(0)

    def _leave_at_once(self, code: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._exit(code)


def _eager(hook: Callable[..., None]) -> Callable[..., None]:
    """The same where a script compiles the step of its optimizer: called between the compiled parts, never traced into them."""

    def call(*args: Any) -> None:
        dynamo = sys.modules.get("torch._dynamo")
        (hook if dynamo is None else dynamo.disable(hook))(*args)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def _parameters_of(optimizer: Optimizer) -> list[Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _quiet() -> Any:
    """Nothing of the user's own sees the reading: no graph, no modes."""
    stack = ExitStack()
    stack.enter_context(torch.no_grad())
    stack.enter_context(torch._C.DisableTorchFunction())
    stack.enter_context(_disable_current_modes())
    return stack


def not_moved(root: str, place: str) -> list[str]:
    """Files of the user's own tree that were imported although the commit has them too: an editable install names them."""
    files = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
    return sorted(one for one in files if in_commit(one, root, place))


class Seeds:
    """Which of the generators that scripts use without a word have no seed: begun when torch has been imported."""

    FRESH = 623
    """Where NumPy's stands that has neither a seed nor been drawn from."""

    def __init__(self) -> None:
        self._python = random.getstate()[1]
        self._marks: dict[str, str] = {}

    def mark(self) -> None:
        """Keep what differs between two runs where nobody gave a generator a seed."""
        self._marks = {"torch": str(torch.initial_seed()), "random": repr(random.getstate()[1])}
        if (state := _numpy_state()) is not None:
            self._marks["numpy"] = repr((*state[1].tolist(), *state[2:]))

    def drawn(self) -> dict[str, str]:
        """Hashes of the marks of those that were used, or were given a seed, up to now."""
        names = ["torch", *["random"] * (random.getstate()[1] != self._python)]
        if (state := _numpy_state()) is not None and state[2] != self.FRESH:
            names.append("numpy")
        # What came behind the mark is like nothing else.
        marks = {name: self._marks.get(name, f"{os.getpid()} {time.time_ns()}") for name in names}
        return {name: blake2b(mark.encode(), digest_size=16).hexdigest() for name, mark in marks.items()}


def _numpy_state() -> Any:
    numpy: Any = sys.modules.get("numpy.random")
    state = None if numpy is None else numpy.get_state()
    return state if state is not None and state[0] == "MT19937" else None


def facts() -> dict[str, Any]:
    """What the bits depend on besides the script and its data."""
    numpy = sys.modules.get("numpy")
    found = {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(torch.__version__),
        "numpy": str(getattr(numpy, "__version__", "")),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
    }
    if torch.cuda.is_available():
        found |= {"device": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda)}
    return found
