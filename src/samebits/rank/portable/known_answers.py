"""Known answers: 27 kernels whose bits are recorded for each torch. One that differs stops the run, by name.

`python -m samebits.rank.portable` computes them and prints what this process has.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.machine.torch_versions import release

FILE = Path(__file__).with_name("known_answers.json")
LARGE, LONG = 65, 3000
"""Beyond the blocks into which BLAS cuts matrices on some CPUs."""
DIGITS = 12
_kernels: dict[str, Callable[[], Iterable[Tensor]]] = {}


def refuse_wrong_answers() -> None:
    """Compute all answers. 0.2 s on one core.

    Raises:
        UsageError: when one differs from what is recorded for this torch, or nothing is recorded for it.
    """
    version = torch_version()
    known = recorded().get(version)
    if known is None:
        raise UsageError(
            f'numerics="portable" has no known answers for torch {version}, only for {", ".join(recorded())}.',
            "Install one of these.",
        )
    found = answers()
    wrong = [name for name, bits in found.items() if known.get(name) != bits]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise UsageError(
            f"This machine does not give the portable bits ({', '.join(wrong[:3])}{more} of {len(found)} known answers differ; "
            f"torch {version}, {' '.join(platform.libc_ver())}).",
            'Use numerics="exact", and report the machine: python -m samebits.rank.portable prints what to send.',
        )


def torch_version() -> str:
    """The release of this process's torch."""
    return release(str(torch.__version__))


def recorded() -> Mapping[str, Mapping[str, str]]:
    """The answers, by torch's version and the kernel's name."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return found


def answers() -> dict[str, str]:
    """The beginning of a hash for each kernel, in this process. The random streams and threads are as before."""
    with torch.random.fork_rng(devices=[]), _one_thread():
        return {name: _digest(kernel()) for name, kernel in _kernels.items()}


@contextmanager
def _one_thread() -> Iterator[None]:
    # Sums over several threads have other bits, and the recorded ones are of one.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:DIGITS]


def _data(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers between -1 and 1 from whole numbers alone: the same wherever it is computed."""
    numbers = (torch.arange(math.prod(shape), dtype=torch.int64, device="cpu") + seed * 7919 + 1) * 2654435761 % 2**24
    return (numbers.to(dtype) / 2**23 - 1).reshape(shape)


def _known(name: str) -> Callable[[Callable[[], Iterable[Tensor]]], None]:
    def keep(kernel: Callable[[], Iterable[Tensor]]) -> None:
        _kernels[name] = kernel

    return keep


def _with_gradients(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    leaves = [one.clone().requires_grad_() for one in inputs]
    result = function(*leaves)
    return [result, *torch.autograd.grad(result, leaves, _data(*result.shape, seed=9, dtype=result.dtype))]


def _module(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Forward and backward of a module whose weights are `_data`."""
    for number, parameter in enumerate(module.parameters()):
        parameter.data = _data(*parameter.shape, seed=number + 3) / 4
    parameters = list(module.parameters())
    result = module(*inputs)
    result = result[0] if isinstance(result, tuple) else result
    return [result, *torch.autograd.grad(result, parameters, _data(*result.shape, seed=9))]


for _dtype, _name in ((torch.float32, "float32"), (torch.float64, "float64")):

    @_known(f"matrix products {_name} (OpenBLAS)")
    def _products(dtype: torch.dtype = _dtype) -> list[Tensor]:
        a, b = _data(LARGE, LONG, dtype=dtype), _data(LONG, 33, seed=1, dtype=dtype)
        return [
            a @ b,
            b.T @ a.T,
            a @ b[:, 0],
            a[0] @ b[:, 1],
            torch.bmm(a.reshape(5, 13, LONG), b.expand(5, LONG, 33)),
        ]

    @_known(f"vector math {_name} (SLEEF in MKL's place)")
    def _vector_math(dtype: torch.dtype = _dtype) -> list[Tensor]:
        x = _data(4099, dtype=dtype)
        wide, positive = x * 20, x.abs() + 1e-3
        near = [torch.acos(x), torch.asin(x), torch.erfinv(x), torch.trunc(wide), torch.atan(wide), torch.erfc(x)]
        return [
            *near,
            *(f(wide) for f in (torch.exp, torch.sin, torch.cos, torch.tan, torch.tanh, torch.erf)),
            *(f(positive) for f in (torch.log, torch.log2, torch.log10, torch.sqrt)),
        ]

    @_known(f"vector math {_name} (ATen)")
    def _aten(dtype: torch.dtype = _dtype) -> list[Tensor]:
        x = _data(4099, dtype=dtype)
        functions = (
            F.silu,
            F.gelu,
            torch.sigmoid,
            torch.expm1,
            F.softplus,
            F.mish,
            torch.sinh,
            F.logsigmoid,
            torch.rsqrt,
        )
        powers = [torch.pow(x.abs() + 0.1, 2.7), torch.pow(2.5, x), torch.atan2(x, x.flip(0)), torch.log1p(x.abs())]
        return [*(f(x.abs() * 5 if f is torch.rsqrt else x * 5) for f in functions), *powers]

    @_known(f"sums {_name}")
    def _sums(dtype: torch.dtype = _dtype) -> list[Tensor]:
        x = _data(LARGE, LONG + 1, dtype=dtype)
        each = [one for f in (torch.sum, torch.mean, torch.var) for one in (f(x, dim=0), f(x, dim=1))]
        return [*each, x.norm(), x.cumsum(0), x.logsumexp(1), x.prod(1)]

    @_known(f"softmax and normalisation {_name}")
    def _normalised(dtype: torch.dtype = _dtype) -> list[Tensor]:
        x = _data(9, 130, dtype=dtype) * 4
        found = [*_with_gradients(lambda a: F.softmax(a, 0), x), *_with_gradients(lambda a: F.log_softmax(a, 1), x)]
        found += _with_gradients(lambda a: F.layer_norm(a, (130,)), x)
        return found + _with_gradients(lambda a: F.batch_norm(a.reshape(9, 13, 10), None, None, training=True), x)

    @_known(f"linear algebra {_name} (LAPACK of MKL, Cholesky of OpenBLAS)")
    def _linear_algebra(dtype: torch.dtype = _dtype) -> list[Tensor]:
        a = _data(37, 37, dtype=dtype)
        positive = a @ a.T + 40 * torch.eye(37, dtype=dtype, device="cpu")
        small = [torch.linalg.cholesky(positive[:size, :size]) for size in range(2, 10)]
        factors = [*torch.linalg.qr(a), torch.linalg.svdvals(a), torch.linalg.cholesky(positive), *small]
        return [*factors, torch.linalg.solve(positive, a), torch.linalg.eigvalsh(positive), torch.linalg.inv(positive)]

    @_known(f"Fourier transforms {_name}")
    def _fourier(dtype: torch.dtype = _dtype) -> list[Tensor]:
        x = _data(7, 250, dtype=dtype)
        return [torch.view_as_real(torch.fft.rfft(x)), torch.fft.irfft(torch.fft.rfft(x, dim=0), dim=0)]

    @_known(f"random numbers {_name}")
    def _random(dtype: torch.dtype = _dtype) -> list[Tensor]:
        torch.manual_seed(7)
        like = torch.empty(1003, dtype=dtype, device="cpu")
        drawn = [
            like.clone().normal_(),
            like.clone().uniform_(),
            like.clone().exponential_(),
            like.clone().log_normal_(),
        ]
        return [
            *drawn,
            torch.bernoulli(_data(1003, dtype=dtype).abs()),
            torch.randperm(1003, device="cpu"),
            F.dropout(like.fill_(1), 0.3),
        ]

    @_known(f"elementary functions {_name} (libm)")
    def _libm(dtype: torch.dtype = _dtype) -> list[Tensor]:
        x = _data(2003, dtype=dtype) * 6
        return [
            torch.lgamma(x.abs() + 0.1),
            torch.digamma(x.abs() + 0.1),
            torch.special.i0(x),
            torch.acosh(x.abs() + 1),
        ]


@_known("convolutions (oneDNN)")
def _convolutions() -> list[Tensor]:
    picture, weight = _data(3, 8, 19, 17), _data(12, 8, 3, 3, seed=1)
    found = _with_gradients(lambda x, w: F.conv2d(x, w, padding=1, stride=2), picture, weight)
    found += _with_gradients(lambda x, w: F.conv1d(x, w, groups=2), _data(3, 8, 40), _data(6, 4, 5, seed=2))
    found += _with_gradients(F.conv3d, _data(2, 3, 6, 6, 6), _data(4, 3, 3, 3, 3, seed=3))
    return found + _with_gradients(lambda x, w: F.conv_transpose2d(x, w, stride=2), picture, _data(8, 5, 3, 3, seed=4))


@_known("attention")
def _attention() -> list[Tensor]:
    q, k, v = (_data(2, 3, 40, 24, seed=number) for number in range(3))
    return _with_gradients(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), q, k, v)


@_known("bfloat16, and autocast")
def _half() -> list[Tensor]:
    half = torch.bfloat16
    found = _with_gradients(torch.mm, _data(LARGE, 300, dtype=half), _data(300, 33, seed=1, dtype=half))
    q, k, v = (_data(1, 2, 40, 24, seed=number, dtype=half) for number in range(3))
    found += _with_gradients(F.scaled_dot_product_attention, q, k, v)
    with torch.autocast("cpu", half):
        found += _with_gradients(F.conv2d, _data(2, 8, 9, 9), _data(12, 8, 3, 3, seed=1))
        return found + _with_gradients(lambda x, w: F.gelu(F.linear(x, w)), _data(20, 130), _data(33, 130, seed=1))


@_known("LSTM (without oneDNN)")
def _lstm() -> list[Tensor]:
    return _module(nn.LSTM(10, 20, num_layers=2), _data(7, 3, 10))


@_known("GRU")
def _gru() -> list[Tensor]:
    return _module(nn.GRU(10, 20), _data(7, 3, 10))


@_known("embeddings and losses")
def _losses() -> list[Tensor]:
    words, classes = torch.arange(60, device="cpu") * 7 % 31, torch.arange(60, device="cpu") * 5 % 13
    found = _with_gradients(lambda w: F.cross_entropy(F.embedding(words, w), classes), _data(31, 13))
    targets = _data(60, 13, seed=5).abs()
    found += _with_gradients(lambda x: F.binary_cross_entropy_with_logits(x, targets), _data(60, 13))
    return found + _with_gradients(lambda x: F.smooth_l1_loss(x, targets), _data(60, 13) * 3)


@_known("AdamW, SGD")
def _optimizers() -> list[Tensor]:
    found = []
    for way in ("foreach", "fused", "loop", "SGD"):
        parameters = [nn.Parameter(_data(33, 21)), nn.Parameter(_data(21))]
        optimizer: torch.optim.Optimizer = torch.optim.SGD(parameters, 0.1, 0.9)
        if way != "SGD":
            optimizer = torch.optim.AdamW(parameters, foreach=way == "foreach", fused=way == "fused")
        for step in range(3):
            for parameter in parameters:
                parameter.grad = _data(*parameter.shape, seed=step)
            optimizer.step()
        found += [one.detach() for one in parameters]
    return found


@_known("a small network, five steps")
def _network() -> list[Tensor]:
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.GELU(), nn.Flatten(), nn.Linear(216, 10))
    for number, parameter in enumerate(model.parameters()):
        parameter.data = _data(*parameter.shape, seed=number) / 8
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for step in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(_data(16, 1, 8, 8, seed=step)), torch.arange(16, device="cpu") % 10).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [one.detach() for one in model.parameters()]


@_known("Python's own elementary functions (libm)")
def _python() -> list[Tensor]:
    points = [number / 97 for number in range(1, 800)]
    functions = (math.exp, math.log, math.sin, math.cos, math.tanh, math.erf, lambda x: math.pow(x, 1.7))
    packed = struct.pack(f"{len(points) * len(functions)}d", *(f(x) for f in functions for x in points))
    return [torch.frombuffer(bytearray(packed), dtype=torch.float64)]
