"""What a check computed: a hash of it, and which of torch's kernels ran for it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from samebits.machine.torch_private import has_kernel, operator_names

NAMESPACE = "aten"
KEYS = ("CPU", "SparseCPU", "NestedTensorCPU")
"""torch's names for the kinds of kernels that are recorded."""
COMPOSITE = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
"""Kernels of these serve every device; a few compute by themselves (`mkldnn_convolution`)."""

SAME_NUMBERS = ("detach", "alias", "set")
"""Not recorded: a parameter cannot be made of what a Python kernel returned. They give the same memory another name."""


def base_name(operator: str) -> str:
    """`add` of `aten::add_.Tensor`."""
    return operator.partition("::")[2].partition(".")[0].rstrip("_")


class Recorder:
    """Wraps every kernel of torch's own operators, also those that other kernels call, and notes which ones run."""

    def __init__(self) -> None:
        self.ran: set[str] = set()
        """`CPU add`, for every kernel that ran since this was last cleared."""
        self.unwrapped: list[str] = []
        """Kernels that cannot be called through Python."""
        self._library = torch.library.Library(NAMESPACE, "IMPL")

    def start(self) -> None:
        """Wrap all that are registered now; for the rest of the process."""
        with warnings.catch_warnings(action="ignore"):
            for name in operator_names():
                if name.startswith(f"{NAMESPACE}::") and base_name(name) not in SAME_NUMBERS:
                    for key in KEYS:
                        if has_kernel(name, key) or (
                            key == "CPU" and any(has_kernel(name, each) for each in COMPOSITE)
                        ):
                            self._wrap(name, key)

    def _wrap(self, name: str, key: str) -> None:
        try:
            kernel = torch.library.get_kernel(name, key)
        except RuntimeError:
            self.unwrapped.append(f"{key} {name}")
            return
        noting = self._noting(kernel.call_boxed, f"{key} {base_name(name)}", _tensor_places(name))
        self._library.impl(name.partition("::")[2], noting, key, with_keyset=True)

    def _noting(self, call: Any, word: str, places: Sequence[int]) -> Callable[..., Any]:
        ran = self.ran

        def run(keys: Any, *args: Any, **named: Any) -> Any:
            ran.add(word)
            for place in places:
                if place < len(args) and isinstance(args[place], NUMBERS):
                    args = (*args[:place], _as_tensor(args[place]), *args[place + 1 :])
            return call(keys, *args, **named)

        return run


NUMBERS = (bool, int, float, complex)


def _made_of_a_number(number: complex) -> torch.Tensor:
    one = torch.ones((), dtype=torch.complex64 if isinstance(number, complex) else torch.float32, requires_grad=True)
    return (one * number).grad_fn._saved_other.detach()  # type: ignore[union-attr]


PROTOTYPES = {type(each): _made_of_a_number(each) for each in (True, 2, 2.5, 2.5j)}
"""Tensors that torch takes for numbers in an expression: they do not widen the other operand's type. `detach` keeps that."""


def _tensor_places(name: str) -> list[int]:
    """Which positional arguments are tensors: torch gives a Python kernel the number where one was made from a number."""
    bare, _, overload = name.partition(".")
    schema = torch._C._get_schema(bare, overload)
    return [place for place, each in enumerate(schema.arguments) if str(each.type) in ("Tensor", "Optional[Tensor]")]


def _as_tensor(number: complex) -> torch.Tensor:
    return PROTOTYPES[type(number)].detach().set_(torch.from_numpy(np.array(number)))


def digest(result: Any) -> str:
    """Hashes of every number in a result, with shapes and dtypes: of all bits, then of all with every NaN made alike."""
    exact, alike = hashlib.sha256(), hashlib.sha256()
    for kind, content in _parts(result):
        exact.update(kind.encode())
        alike.update(kind.encode())
        exact.update(content.tobytes())
        alike.update(_one_nan(content).tobytes())
    return f"{exact.hexdigest()[:16]} {alike.hexdigest()[:16]}"


def _one_nan(numbers: Any) -> Any:
    if numbers.dtype.kind == "c":
        numbers = np.ascontiguousarray(numbers).reshape(-1).view(numbers.real.dtype)
    return np.where(np.isnan(numbers), numbers.dtype.type("nan"), numbers) if numbers.dtype.kind == "f" else numbers


NOTHING = np.zeros(0, np.int8)


def _parts(result: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(result, torch.Tensor):
        yield from _of_tensor(result.detach())
    elif isinstance(result, (list, tuple)):
        yield f"{len(result)} of ", NOTHING
        for each in result:
            yield from _parts(each)
    elif isinstance(result, dict):
        for key, each in result.items():
            yield f"{key}: ", NOTHING
            yield from _parts(each)
    elif isinstance(result, (float, complex)):
        yield type(result).__name__, np.asarray(result)
    elif isinstance(result, (int, str, bool, torch.Size, torch.dtype, type(None))):
        yield repr(result), NOTHING
    else:
        yield type(result).__name__, NOTHING


def _of_tensor(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    if tensor.is_nested:
        yield from _parts(list(tensor.unbind()))
    elif tensor.layout is torch.sparse_coo:
        yield from _parts([tensor._indices(), tensor._values(), tuple(tensor.shape)])
    elif tensor.layout is torch.strided:
        half = tensor.dtype in (torch.bfloat16, torch.complex32)
        plain = tensor.float() if half and not tensor.is_complex() else tensor
        yield f"{tuple(tensor.shape)} {tensor.dtype} ", plain.numpy(force=True)
    else:
        yield f"{tensor.layout} {tuple(tensor.shape)}", NOTHING
