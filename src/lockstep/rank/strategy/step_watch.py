"""Work around an optimizer's engine in its step: after all pre-hooks, and before all post-hooks.

torch calls hooks in the order in which they were registered. So the object's `optimizer.step` first puts ours in their
places, and cleans up when the step raises, for which torch has no hook.

An engine that draws random numbers, on whatever device, is refused: each rank would draw the first ones for its own part.
The check costs 3 µs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from lockstep.errors import UsageError
from lockstep.rank.init.generators import states


class StepWatch:
    """The watch over one optimizer.

    Args:
        optimizer: the object gets a `step` that calls its former one.
        before: called when the engine is about to begin; other hooks have seen the optimizer as it is.
        after: called when the engine is finished.
        undo: called at the end of each outermost `step`, even if it raised.
        strategy: what messages call the strategy by which each rank updates a part. Empty: the script chose none, and the
            engine is torch's own, which draws nothing; then nothing is refused, and errors stay as they are.

    A step that drew random numbers raises `UsageError` before `after`, on every rank that has a part of it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        before: Callable[[], None],
        after: Callable[[], None],
        undo: Callable[[], None],
        strategy: str = "zero1",
    ) -> None:
        self._optimizer, self._strategy = optimizer, strategy
        self._streams: list[list[Tensor]] = []
        """torch's random streams at the start of each running step; a step may call its base class's."""
        self._first = optimizer.register_step_pre_hook(lambda *_: self._begin(before))
        self._last = optimizer.register_step_post_hook(lambda *_: self._end(after))
        self._is_active = True
        self._is_idle = False
        self._depth = 0
        """The running calls of `step`: one may call itself."""
        self._inner = optimizer.step
        self._step = MethodType(self._around(undo), optimizer)
        optimizer.step = self._step  # type: ignore[method-assign]

    def _begin(self, before: Callable[[], None]) -> None:
        if not self._is_idle:
            before()
        if not self._is_idle and self._strategy:
            self._streams.append(states())

    def _end(self, after: Callable[[], None]) -> None:
        if self._is_idle:
            return
        if self._strategy and not all(map(torch.equal, self._streams.pop(), states())):
            raise UsageError(
                f"{type(self._optimizer).__name__}.step() drew random numbers. Under {self._strategy} each rank "
                "updates a part of the parameters, and would draw different ones for it than a single rank does.",
                "Use --strategy ddp.",
            )
        after()

    def _around(self, undo: Callable[[], None]) -> Callable[..., Any]:
        inner = self._inner

        @functools.wraps(inner)
        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            if not self._is_active:
                return inner(*args, **kwargs)
            pre: Any = optimizer._optimizer_step_pre_hooks  # noqa: SLF001 - ordered dictionaries, but torch offers no order
            post: Any = optimizer._optimizer_step_post_hooks  # noqa: SLF001
            pre.move_to_end(self._first.id)
            post.move_to_end(self._last.id, last=False)
            self._depth += 1
            try:
                return inner(*args, **kwargs)
            except (AttributeError, TypeError) as error:
                if "NoneType" not in str(error) or self._is_idle or not self._strategy:
                    raise
                raise UsageError(
                    f"{type(optimizer).__name__}.step() failed ({error}). Under {self._strategy} it sees the "
                    "gradients of this rank's part only, and must skip parameters whose grad is None, as torch's "
                    "optimizers do.",
                    "Use --strategy ddp.",
                ) from error
            finally:
                self._depth -= 1
                if not self._depth:
                    self._streams.clear()
                    undo()
                    if self._is_idle:
                        self.remove()

        return step

    def rest(self) -> None:
        """Watch no more, from the running step on."""
        self._is_idle = True
        if not self._depth:
            self.remove()

    def remove(self) -> None:
        """Let the optimizer step as before. A scheduler that was made in the meantime still calls through this."""
        self._is_active = False
        self._first.remove()
        self._last.remove()
        if vars(self._optimizer).get("step") is self._step:
            if isinstance(self._inner, MethodType):
                del self._optimizer.step
            else:
                self._optimizer.step = self._inner  # type: ignore[method-assign]
