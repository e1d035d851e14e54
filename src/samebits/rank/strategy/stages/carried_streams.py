"""The random streams that travel with a lane's activations from stage to stage.

A lane draws its random numbers in one order, whichever stage computes: dropout in the second stage continues where the
first one stopped.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Words = dict[str, Any]


class CarriedStreams:
    """The global streams of this process: torch (and its CUDA device), NumPy, `random`.

    Of several GPUs only the rank's own: the next stage continues with its own where this one's stopped, and neither uses others.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._start: dict[str, Any] = {}

    def mark(self) -> None:
        """Note where the streams are as the model is called: at the same place on every stage of the replica."""
        self._start = self._present()

    def pack(self) -> tuple[Words, list[Tensor]]:
        """Return what moved since `mark`: JSON words, and tensors of torch's states, for `unpack` on another stage."""
        # Torch's state has 5,056 bytes: what did not move is not sent.
        now = self._present()
        moved = {name: state for name, state in now.items() if not _equal(state, self._start[name])}
        tensors = [state for state in moved.values() if isinstance(state, Tensor)]
        words = {name: None if isinstance(state, Tensor) else _words(state) for name, state in moved.items()}
        return words, tensors

    def unpack(self, words: Words, tensors: Sequence[Tensor]) -> None:
        """Set the streams to where the sender's were. Those it does not mention are as at `mark`."""
        states = iter(tensors)
        for name, start in self._start.items():
            if name not in words:
                self._set(name, start)
            else:
                self._set(name, next(states) if words[name] is None else _state(words[name]))

    def standing(self) -> list[Any]:
        """Return something that stays equal while no stream moves."""
        return [
            repr(_words(state)) if not isinstance(state, Tensor) else state.numpy().tobytes()
            for state in self._present().values()
        ]

    def go_to(self, states: Mapping[str, Tensor]) -> None:
        """Set torch's streams to where they were when `states` was called."""
        for name, state in states.items():
            self._set(name, state)

    def _present(self) -> dict[str, Any]:
        return {**self.states(), "numpy": np.random.get_state(legacy=True), "random": random.getstate()}

    def states(self) -> dict[str, Tensor]:
        """Return the states of torch's own streams, for `go_to`."""
        states = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _set(self, name: str, state: Any) -> None:
        if name == "torch":
            torch.set_rng_state(state)
        elif name == "cuda":
            torch.cuda.set_rng_state(state, self.device)
        elif name == "numpy":
            np.random.set_state(state)
        else:
            random.setstate(state)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Tensor):
        return torch.equal(left, right)
    return all(
        one.tobytes() == other.tobytes() if isinstance(one, np.ndarray) else one == other
        for one, other in zip(left, right, strict=True)
    )


def _words(state: Sequence[Any]) -> list[Any]:
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in state]


def _state(words: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(part) if isinstance(part, list) else part for part in words)
