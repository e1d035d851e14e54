"""Checks of what training needs and torch's list of operators lacks: layers, optimizers, large sizes, sparse gradients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.portable.listed import gradients, plain, seed, words

Made = tuple[Any, Callable[[], Any]]


class _First(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.inner(*inputs)[0]


def integers(*shape: int, below: int, stream: int = 0) -> torch.Tensor:
    """Numbers from 0 up to a limit."""
    number = int(torch.Size(shape).numel())
    return torch.from_numpy((words(number, stream) % below).astype("int64")).reshape(shape)


class _Adaptive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.AdaptiveLogSoftmaxWithLoss(24, 40, [10, 20])

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.inner(inputs, integers(inputs.shape[0], below=40)).loss


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "Linear": (lambda: nn.Linear(300, 77), ((33, 300),)),
    "Linear wide": (lambda: nn.Linear(2048, 96), ((64, 2048),)),
    "Bilinear": (lambda: nn.Bilinear(7, 9, 5), ((11, 7), (11, 9))),
    "Conv1d": (lambda: nn.Conv1d(5, 12, 5, stride=2, padding=2), ((3, 5, 61),)),
    "Conv2d": (lambda: nn.Conv2d(3, 24, 3, padding=1), ((4, 3, 29, 31),)),
    "Conv2d batch 16": (lambda: nn.Conv2d(16, 16, 3, padding=1), ((16, 16, 14, 14),)),
    "Conv2d batch 16 without bias": (lambda: nn.Conv2d(64, 32, 1, bias=False), ((17, 64, 7, 7),)),
    "Conv2d grouped": (lambda: nn.Conv2d(12, 24, 3, groups=4), ((3, 12, 13, 13),)),
    "Conv2d depthwise": (lambda: nn.Conv2d(16, 16, 3, groups=16, padding=1), ((3, 16, 13, 13),)),
    "Conv2d dilated": (lambda: nn.Conv2d(6, 9, 3, dilation=2), ((2, 6, 19, 17),)),
    "Conv3d": (lambda: nn.Conv3d(3, 5, 3), ((2, 3, 7, 8, 9),)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(5, 7, 4, stride=2), ((2, 5, 21),)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(8, 6, 4, stride=2), ((2, 8, 9, 9),)),
    "ConvTranspose2d dilated": (lambda: nn.ConvTranspose2d(8, 6, 3, dilation=2, groups=2), ((2, 8, 9, 9),)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 3, 3), ((1, 4, 5, 5, 5),)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(31), ((65, 31),)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(9), ((8, 9, 13, 11),)),
    "BatchNorm2d in evaluation": (lambda: nn.BatchNorm2d(9).eval(), ((8, 9, 13, 11),)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(5), ((3, 5, 4, 6, 7),)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(9, affine=True), ((3, 9, 13, 11),)),
    "GroupNorm": (lambda: nn.GroupNorm(3, 12), ((5, 12, 7, 9),)),
    "LayerNorm": (lambda: nn.LayerNorm(129), ((17, 129),)),
    "RMSNorm": (lambda: nn.RMSNorm(129), ((17, 129),)),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(3), ((3, 7, 9, 9),)),
    "MultiheadAttention": (lambda: _First(nn.MultiheadAttention(48, 4, batch_first=True)), ((3, 19, 48),) * 3),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(48, 4, 96, batch_first=True), ((3, 19, 48),)),
    "TransformerEncoderLayer in evaluation": (
        lambda: nn.TransformerEncoderLayer(48, 4, 96, batch_first=True).eval(),
        ((3, 19, 48),),
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(48, 4, 96, batch_first=True),
        ((3, 11, 48), (3, 19, 48)),
    ),
    "Transformer": (lambda: nn.Transformer(32, 4, 1, 1, 64, batch_first=True), ((2, 9, 32), (2, 7, 32))),
    "LSTM": (lambda: _First(nn.LSTM(21, 37, num_layers=2, batch_first=True, dropout=0.1)), ((5, 13, 21),)),
    "LSTM both ways": (lambda: _First(nn.LSTM(21, 37, bidirectional=True)), ((13, 5, 21),)),
    "LSTM with projection": (lambda: _First(nn.LSTM(21, 37, proj_size=11)), ((13, 5, 21),)),
    "GRU": (lambda: _First(nn.GRU(21, 37, num_layers=2, batch_first=True)), ((5, 13, 21),)),
    "GRU both ways": (lambda: _First(nn.GRU(21, 37, bidirectional=True)), ((13, 5, 21),)),
    "RNN": (lambda: _First(nn.RNN(21, 37, num_layers=2)), ((13, 5, 21),)),
    "RNN relu": (lambda: _First(nn.RNN(21, 37, nonlinearity="relu")), ((13, 5, 21),)),
    "LSTMCell": (lambda: _First(nn.LSTMCell(21, 37)), ((5, 21),)),
    "GRUCell": (lambda: nn.GRUCell(21, 37), ((5, 21),)),
    "RNNCell": (lambda: nn.RNNCell(21, 37), ((5, 21),)),
    "PReLU": (lambda: nn.PReLU(7), ((5, 7, 33),)),
    "GELU tanh": (lambda: nn.GELU("tanh"), ((33, 67),)),
    "GLU": (nn.GLU, ((33, 66),)),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(33, 21)), ((5, 33),)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(33, 21)), ((5, 33),)),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(33, 21)), ((5, 33),)),
    "MaxPool1d": (lambda: nn.MaxPool1d(3, 2), ((2, 5, 31),)),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2), ((2, 5, 31, 29),)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), ((2, 5, 9, 8, 7),)),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(3, 5), ((2, 5, 31, 29),)),
    "FractionalMaxPool3d": (lambda: nn.FractionalMaxPool3d(2, 3), ((2, 5, 9, 9, 9),)),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2), ((2, 5, 31, 29),)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(5), ((2, 5, 31, 29),)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(5), ((2, 5, 31, 29),)),
    "Upsample": (lambda: nn.Upsample(scale_factor=1.7, mode="bicubic"), ((2, 5, 13, 11),)),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), ((2, 8, 5, 7),)),
    "Fold": (lambda: nn.Fold((9, 9), 3), ((2, 27, 49),)),
    "AdaptiveLogSoftmaxWithLoss": (_Adaptive, ((9, 24),)),
}
"""Layers, and the shapes of their inputs."""


def fill(module: nn.Module) -> None:
    """Give a module parameters that no library had a part in."""
    with torch.no_grad():
        for stream, each in enumerate(module.parameters()):
            each.copy_(plain(*each.shape, dtype=each.dtype, stream=stream + 20, low=-0.3, high=0.3))


def _layer(name: str, dtype: torch.dtype, autocast: torch.dtype | None = None) -> Iterator[Made]:
    make, shapes = LAYERS[name]

    def compute() -> Any:
        seed()
        module = make().to(dtype)
        fill(module)
        inputs = [plain(*shape, dtype=dtype, stream=index).requires_grad_() for index, shape in enumerate(shapes)]
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            output = module(*inputs)
        sources = [*inputs, *module.parameters()]
        return [output, gradients(output, sources), list(module.buffers())]

    yield None, compute


def _optimizer(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> Iterator[Made]:
    def compute() -> Any:
        seed()
        model = nn.Sequential(nn.Linear(37, 65), nn.Tanh(), nn.Linear(65, 1))
        fill(model)
        if kind is torch.optim.Muon:
            parameters = [each for each in model.parameters() if each.dim() == 2]
        else:
            parameters = list(model.parameters())
        optimizer = kind(parameters, **options)
        inputs = plain(19, 37, stream=3)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            return loss

        losses = [optimizer.step(closure) for _ in range(3)]
        return [losses, list(model.parameters())]

    yield None, compute


OPTIONS: dict[str, Any] = {"amsgrad": True, "nesterov": True, "momentum": 0.9, "centered": True, "weight_decay": 0.01}


def _optimizers() -> Iterator[tuple[str, Callable[[], Iterator[Made]]]]:
    for name in (
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "ASGD",
        "LBFGS",
        "Muon",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    ):
        kind = getattr(torch.optim, name, None)
        if kind is None:
            continue
        known = inspect.signature(kind).parameters
        more = {word: value for word, value in OPTIONS.items() if word in known}
        for way in ("foreach", "fused"):
            if way in known:
                yield f"optim.{name} {way}", partial(_optimizer, kind, {**more, way: True})
        plainly = {way: False for way in ("foreach",) if way in known}
        yield f"optim.{name}", partial(_optimizer, kind, {**more, **plainly})


def _one(compute: Callable[[], Any]) -> Iterator[Made]:
    def run() -> Any:
        seed()
        return compute()

    yield None, run


def _of(function: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    given = [each.clone().requires_grad_(each.is_floating_point() or each.is_complex()) for each in inputs]
    output = function(*given)
    return [output, gradients(output, [each for each in given if each.requires_grad])]


def _attention(causal: bool, dtype: torch.dtype) -> Any:
    q, k, v = (plain(2, 3, 77, 40, dtype=dtype, stream=index) for index in range(3))
    return _of(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v)


def _ctc() -> Any:
    lengths = torch.tensor([30, 25, 28]), torch.tensor([8, 9, 5])
    targets = integers(3, 9, below=18) + 1
    return _of(lambda x: F.ctc_loss(F.log_softmax(x, -1), targets, *lengths), plain(30, 3, 19))


def _random(dtype: torch.dtype) -> Any:
    positive = plain(1001, dtype=dtype, low=0.2, high=5)
    return [
        torch.rand(1001, dtype=dtype), torch.randn(1001, dtype=dtype), torch.randn(7, dtype=dtype), torch.randperm(101),
        torch.randint(0, 1000, (101,)), torch.empty(1001, dtype=dtype).normal_(1, 2), torch.empty(1001, dtype=dtype).exponential_(),
        torch.empty(1001, dtype=dtype).cauchy_(), torch.empty(1001, dtype=dtype).log_normal_(), torch.empty(1001, dtype=dtype).geometric_(0.3),
        torch.empty(1001, dtype=dtype).uniform_(-1, 1), torch.empty(1001, dtype=dtype).random_(), torch.empty(1001, dtype=dtype).bernoulli_(0.3),
        torch.bernoulli(positive / 5), torch.poisson(positive), torch.multinomial(positive, 20), torch._standard_gamma(positive),
        torch._sample_dirichlet(positive.reshape(77, 13)), torch.binomial(positive.floor() + 3, positive / 6), torch.normal(positive, positive),
        F.dropout(positive, 0.3), torch.distributions.Beta(positive, positive).sample(), F.gumbel_softmax(positive.reshape(77, 13)),
        nn.init.orthogonal_(torch.empty(20, 30, dtype=dtype)), nn.init.trunc_normal_(torch.empty(300, dtype=dtype)),
        nn.init.kaiming_uniform_(torch.empty(20, 30, dtype=dtype)), torch.rand(5, dtype=torch.complex64),
    ]  # fmt: skip


def _embedding_bag(mode: str, sparse: bool) -> Any:
    weight = plain(50, 33).requires_grad_()
    weights = plain(40, stream=3).requires_grad_() if mode == "sum" else None
    offsets = torch.tensor([0, 3, 3, 17, 29])
    output = F.embedding_bag(
        integers(40, below=50), weight, offsets, mode=mode, sparse=sparse, per_sample_weights=weights
    )
    return [output, gradients(output, [weight, *([weights] if weights is not None else [])])]


def _sparse_gradients(kind: type[torch.optim.Optimizer]) -> Any:
    layer = nn.Embedding(50, 33, sparse=True)
    fill(layer)
    optimizer = kind(layer.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        layer(integers(40, below=50, stream=step)).square().sum().backward()
        optimizer.step()
    return [layer.weight, layer.weight.grad]


def _coo(stream: int = 0) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        torch.stack([integers(90, below=20, stream=stream), integers(90, below=31, stream=stream + 1)]),
        plain(90, stream=stream),
        (20, 31),
    )


def _sparse() -> Any:
    one, other = _coo().coalesce(), _coo(7).coalesce()
    dense = plain(31, 17, stream=5)
    return [
        one, _coo(3), one + other, one * other, one - other, one * 2.5, one / 3, one.to_dense(), torch.sparse.mm(one, dense),
        torch.sparse.mm(one, other.t()), torch.sparse.sum(one, 0), one.t(), one.clone(), plain(20, 31).add(one), one.pow(2),
        plain(20, 31).to_sparse(), torch.sparse.softmax(one, 1), torch.sparse.log_softmax(one, 1), one.norm(), one.sqrt(), one.neg(),
        torch.cat([one, other]), one.index_select(0, integers(5, below=20)), torch.stack([one, other]), one.sum(), one.mv(plain(31)),
        torch.sparse.addmm(plain(20, 17), one, dense), torch.zeros(20, 31).sparse_mask(one), torch.zeros_like(one), one.float().double(),
        torch.hspmm(one, dense), plain(20, 31).add_(other), one.unsqueeze(0), one[3], one.narrow(0, 2, 9), one.is_coalesced(),
    ]  # fmt: skip


def _nested() -> Any:
    layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(48, 4, 96, batch_first=True), 2).eval()
    fill(layer)
    mask = torch.arange(19)[None] >= torch.tensor([[19], [7], [13]])
    with torch.no_grad():
        return layer(plain(3, 19, 48), src_key_padding_mask=mask)


def _packed(kind: type[nn.RNNBase]) -> Any:
    layer = kind(21, 37, num_layers=2)
    fill(layer)
    inputs = plain(13, 5, 21).requires_grad_()
    packed = nn.utils.rnn.pack_padded_sequence(inputs, [13, 11, 11, 5, 1])
    output = nn.utils.rnn.pad_packed_sequence(layer(packed)[0])[0]
    return [output, gradients(output, [inputs, *layer.parameters()])]


def _linear_algebra(dtype: torch.dtype) -> Any:
    square = plain(70, 70, dtype=dtype) + 3 * torch.eye(70, dtype=dtype)
    positive = square @ square.mT
    functions: tuple[Callable[..., Any], ...] = (
        torch.linalg.inv, torch.linalg.det, torch.linalg.slogdet, torch.linalg.cholesky, torch.linalg.qr, torch.linalg.svdvals,
        torch.linalg.eigvalsh, torch.linalg.matrix_exp, lambda x: torch.linalg.solve(x, x), torch.linalg.eigvals, torch.logdet,
    )  # fmt: skip
    return [_of(function, positive) for function in functions]


def _losses() -> Any:
    scores, labels = plain(65, 37), integers(65, below=37)
    pairs = [
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        F.poisson_nll_loss,
        F.soft_margin_loss,
        F.kl_div,
        F.binary_cross_entropy_with_logits,
    ]
    return [
        _of(lambda x: F.cross_entropy(x, labels, label_smoothing=0.1), scores), _of(lambda x: F.cross_entropy(x, labels, plain(37, low=0.1)), scores),
        _of(lambda x: F.cross_entropy(x, F.softmax(plain(65, 37, stream=2), 1)), scores), _of(lambda x: F.multi_margin_loss(x, labels), scores),
        *[_of(lambda x, pair=pair: pair(x, plain(65, 37, stream=9, low=0.1, high=0.9)), scores) for pair in pairs],
    ]  # fmt: skip


def _fft(dtype: torch.dtype) -> Any:
    signal = plain(5, 7, 129, dtype=dtype)
    complex_signal = torch.complex(signal, signal.flip(0))
    return [_of(torch.fft.fft, complex_signal), _of(torch.fft.rfft, signal), _of(torch.fft.fft2, signal), _of(torch.fft.irfft, complex_signal),
            _of(lambda x: torch.stft(x, 32, window=torch.hann_window(32, dtype=dtype), return_complex=True), signal[0])]  # fmt: skip


def _products(dtype: torch.dtype) -> Any:
    sizes = [
        (64, 64, 64),
        (32, 784, 300),
        (128, 513, 257),
        (96, 3000, 96),
        (1, 300, 200),
        (300, 64, 1),
        (7, 5, 3),
        (0, 3, 4),
        (3, 0, 4),
    ]
    made = [_of(torch.mm, plain(m, k, dtype=dtype), plain(k, n, dtype=dtype, stream=1)) for m, k, n in sizes]
    made += [_of(torch.bmm, plain(8, 33, 64, dtype=dtype), plain(8, 65, 64, dtype=dtype, stream=1).mT)]
    made += [
        _of(torch.mv, plain(300, 411, dtype=dtype), plain(411, dtype=dtype)),
        _of(torch.dot, plain(5001, dtype=dtype), plain(5001, dtype=dtype, stream=1)),
    ]
    return [
        *made,
        _of(
            lambda a, b: torch.einsum("bij,bkj->bik", a, b),
            plain(4, 20, 30, dtype=dtype),
            plain(4, 25, 30, dtype=dtype),
        ),
    ]


def _clipping() -> Any:
    parameters = [plain(33, 7, stream=index).requires_grad_() for index in range(5)]
    for each in parameters:
        each.grad = each.detach() * 3
    norms = [nn.utils.clip_grad_norm_(parameters, 1.0, foreach=foreach) for foreach in (True, False)]
    nn.utils.clip_grad_value_(parameters, 0.01)
    return [norms, [each.grad for each in parameters], nn.utils.parameters_to_vector(parameters)]


def _gradient_scaler() -> Any:
    gradients_ = [plain(33, 7), plain(9)]
    found = torch.zeros(1)
    torch._amp_foreach_non_finite_check_and_unscale_(gradients_, found, torch.tensor(0.5))
    scale, growth = torch.tensor(4.0), torch.zeros(1, dtype=torch.int32)
    torch._amp_update_scale_(scale, growth, found, 2.0, 0.5, 1)
    return [gradients_, found, scale, growth]


def cases() -> dict[str, Callable[[], Iterator[Made]]]:
    """By name: a function whose items are inputs and what computes with them."""
    both = {"float32": torch.float32, "float64": torch.float64}
    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}
    found = {
        f"nn.{name} {word}": partial(_layer, name, dtype) for name in LAYERS for word, dtype in (both | half).items()
    }
    found |= {
        f"nn.{name} autocast {word}": partial(_layer, name, torch.float32, dtype)
        for name in LAYERS
        for word, dtype in half.items()
    }
    found.update(_optimizers())
    single: dict[str, Callable[[], Any]] = {
        "ctc loss": _ctc, "losses": _losses, "sparse": _sparse, "nested": _nested, "clipping": _clipping, "gradient scaler": _gradient_scaler,
        "nn.LSTM packed": partial(_packed, nn.LSTM), "nn.GRU packed": partial(_packed, nn.GRU), "nn.RNN packed": partial(_packed, nn.RNN),
        **{f"embedding bag {mode} {sparse}": partial(_embedding_bag, mode, sparse) for mode in ("sum", "mean", "max") for sparse in (False, True) if not (mode == "max" and sparse)},
        **{f"sparse gradients {kind.__name__}": partial(_sparse_gradients, kind) for kind in (torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad)},
    }  # fmt: skip
    for word, dtype in half.items():
        single[f"products {word}"] = partial(_products, dtype)
        for causal in (False, True):
            single[f"attention {causal} {word}"] = partial(_attention, causal, dtype)
    for word, dtype in both.items():
        for name, function in (
            ("random", _random),
            ("linear algebra", _linear_algebra),
            ("fft", _fft),
            ("products", _products),
        ):
            single[f"{name} {word}"] = partial(function, dtype)
        for causal in (False, True):
            single[f"attention {causal} {word}"] = partial(_attention, causal, dtype)
    return found | {name: partial(_one, compute) for name, compute in single.items()}
