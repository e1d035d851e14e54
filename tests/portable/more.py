"""Checks of operators that neither torch's list nor ordinary training reaches: each its own case, so that one can fail alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from tests.portable.listed import gradients, plain, seed
from tests.portable.training import _coo, _of, integers

ATEN = torch.ops.aten

FOREACH = (
    "abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg reciprocal round rsqrt sigmoid "
    "sign sin sinh sqrt tan tanh trunc"
)
SPARSE_ONE = (
    "abs asin asinh atan atanh ceil clone deg2rad erf erfinv expm1 floor frac isinf isnan isneginf isposinf log1p nan_to_num neg "
    "rad2deg relu round sgn sign signbit sin sinh sqrt tan tanh trunc zeros_like empty_like is_pinned any coalesce "
    "to_dense dense_dim sparse_dim _dimI _dimV"
)


def _foreach() -> dict[str, Callable[[], Any]]:
    def lists(low: float = 0.1) -> list[torch.Tensor]:
        return [plain(33, 7, stream=each, low=low, high=0.9) for each in range(3)]

    found: dict[str, Callable[[], Any]] = {}
    for name in FOREACH.split():
        function = getattr(torch, f"_foreach_{name}")
        found[f"foreach {name}"] = lambda function=function: [
            _of(lambda *each: function(list(each)), *lists()),
            function([plain(5, dtype=torch.float64)]),
        ]
    for name in ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "clamp_min", "clamp_max"):
        function = getattr(torch, f"_foreach_{name}")
        found[f"foreach {name}"] = lambda function=function: [
            function(lists(), other) for other in (lists(0.2), 0.3, [0.1, 0.2, 0.3])
        ]
    for name in ("addcmul", "addcdiv"):
        function = getattr(torch, f"_foreach_{name}")
        found[f"foreach {name}"] = lambda function=function: [
            function(lists(), lists(0.2), lists(0.3), value) for value in (0.3, [0.1, 0.2, 0.3])
        ]
    return found | {
        "foreach lerp": lambda: [
            torch._foreach_lerp(lists(), lists(0.2), other) for other in (0.3, lists(0.4), [0.1, 0.2, 0.3])
        ],
        "foreach norm": lambda: [torch._foreach_norm(lists(), order) for order in (1, 2, float("inf"))],
        "foreach max": lambda: torch._foreach_max(lists()),
        "foreach powsum": lambda: torch._foreach_powsum(lists(), 2),
        "foreach copy": lambda: torch._foreach_copy_(lists(), lists(0.2)),
        "foreach zero": lambda: torch._foreach_zero_(lists()),
        "foreach clone": lambda: torch._foreach_clone(lists()),
    }


def _sparse_ones() -> dict[str, Callable[[], Any]]:
    def one() -> torch.Tensor:
        return torch.sparse_coo_tensor(_coo()._indices(), plain(90, low=0.05, high=0.95), (20, 31)).coalesce()

    found: dict[str, Callable[[], Any]] = {}
    for name in SPARSE_ONE.split():
        found[f"sparse {name}"] = lambda name=name: getattr(torch, name, getattr(torch.Tensor, name, None))(one())
    dense = plain(31, 17, stream=5)
    return found | {
        "sparse softmax": lambda: _of(lambda x: torch.sparse.softmax(x, 1).to_dense(), one()),
        "sparse log_softmax": lambda: _of(lambda x: torch.sparse.log_softmax(x, 1).to_dense(), one()),
        "sparse sum": lambda: _of(torch.sparse.sum, one()),
        "sparse sum of rows": lambda: _of(lambda x: torch.sparse.sum(x, 1).to_dense(), one()),
        "sparse mm sparse": lambda: _of(lambda x, y: torch.sparse.mm(x, y).to_dense(), one(), one().t().coalesce()),
        "sparse mm dense": lambda: _of(torch.sparse.mm, one(), dense),
        "sparse mm": lambda: [torch.mm(one(), dense), one() @ dense, one().mv(plain(31))],
        "sparse addmm": lambda: [torch.sparse.addmm(plain(20, 17), one(), dense), torch.addmm(plain(20, 17), one(), dense)],
        "sparse sspaddmm": lambda: torch.sspaddmm(torch.sparse_coo_tensor(size=(20, 17)), one(), dense),
        "sparse hspmm": lambda: torch.hspmm(one(), dense),
        "sparse smm": lambda: torch.smm(one(), dense),
        "sparse bmm": lambda: torch.bmm(torch.stack([one(), one() * 2]).coalesce(), plain(2, 31, 5)),
        "sparse add": lambda: [one() + _coo(7), one().add_(_coo(7)), plain(20, 31).add_(one()), one() - _coo(7)],
        "sparse mul": lambda: [one() * _coo(7), one() * 2.5, one().mul_(3), one() * torch.tensor(2.0)],
        "sparse div": lambda: [one() / 3, one().div_(3), one() // 0.25],
        "sparse pow": lambda: [one().pow(2), one().pow(3)],
        "sparse norm": lambda: [one().norm(), torch.linalg.vector_norm(one()._values())],
        "sparse cat": lambda: [torch.cat([one(), one()]), torch.stack([one(), one()])],
        "sparse shapes": lambda: [one().t(), one().unsqueeze(0), one().permute(1, 0), one().transpose(0, 1), one().index_select(0, integers(5, below=20)), one().narrow_copy(0, 2, 9)],
        "sparse copy": lambda: [_coo(7).copy_(one()), one().clone(), one().to(torch.float64), one().detach()],
        "sparse zero": lambda: [one().zero_(), torch.zeros_like(one()), torch.sparse_coo_tensor(size=(3, 4)), torch.zeros(3, 4, layout=torch.sparse_coo)],
        "sparse resize": lambda: [one().sparse_resize_(30, 40) if False else one().sparse_resize_((30, 40), 2, 0), one().sparse_resize_and_clear_((3, 4), 2, 0), one().resize_as_(one())],
        "sparse mask": lambda: [plain(20, 31).sparse_mask(one()), one().sparse_mask(one()), _of(lambda x: x.sparse_mask(one()).to_dense(), plain(20, 31))],
        "sparse to_sparse": lambda: [plain(20, 31).to_sparse(), plain(20, 31).to_sparse(1), _of(lambda x: (x.to_sparse() * 2).to_dense(), plain(20, 31))],
        "sparse threshold": lambda: _of(lambda x: torch.relu(x).to_dense(), one()),
        "sparse complex": lambda: [torch.view_as_real(one() * (1 + 2j)), (one() * (1 + 2j)).conj_physical(), (one() * (1 + 2j)).abs()],
        "sparse is_same_size": lambda: [one().is_same_size(one()), one().is_coalesced(), one()._nnz()],
        "spdiags": lambda: torch.sparse.spdiags(plain(3, 9), torch.tensor([-1, 0, 2]), (9, 9)),
    }  # fmt: skip


def _nested() -> dict[str, Callable[[], Any]]:
    def one(stream: int = 0) -> torch.Tensor:
        return torch.nested.nested_tensor(
            [plain(size, 16, stream=size + stream, low=0.1, high=0.9) for size in (5, 3, 8)]
        )

    functions = [
        "abs",
        "sin",
        "cos",
        "sqrt",
        "tanh",
        "relu",
        "silu",
        "gelu",
        "neg",
        "sgn",
        "isinf",
        "isnan",
        "logical_not",
        "clone",
        "zeros_like",
        "ones_like",
        "empty_like",
    ]
    found: dict[str, Callable[[], Any]] = {}
    for name in functions:
        function = getattr(torch, name, getattr(F, name, None))
        found[f"nested {name}"] = lambda function=function: function(one())
    return found | {
        "nested padded": lambda: [torch.nested.to_padded_tensor(one(), 0.0), one().unbind()],
        "nested linear": lambda: F.linear(one(), plain(7, 16), plain(7)),
        "nested softmax": lambda: torch.softmax(one(), -1),
        "nested layer_norm": lambda: F.layer_norm(one(), (16,), plain(16), plain(16)),
        "nested matmul": lambda: [torch.matmul(one(), one(3).transpose(1, 2)), torch.bmm(one(), one(3).transpose(1, 2))],
        "nested sums": lambda: [one() + one(3), one() - one(3), one() * one(3), one() / 2.0, one() * 2.0, one().sum(-1, keepdim=True)],
        "nested dropout": lambda: F.dropout(one(), 0.3),
        "nested embedding": lambda: F.embedding(torch.nested.nested_tensor([integers(3, below=9), integers(5, below=9)]), plain(9, 4)),
        "nested compare": lambda: [one() > 0.5, one() == 0.5, one().masked_fill(one() > 0.5, 0.0)],
        "nested shapes": lambda: [one().transpose(1, 2), one().unsqueeze(1), one().split([8, 8], -1), one().chunk(2, -1), torch.cat([one(), one()])],
        **{
            f"nested backward {name}": lambda function=function: _nested_backward(function)
            for name, function in {
                "softmax": lambda x: torch.softmax(x, -1), "gelu": F.gelu, "silu": F.silu, "relu": F.relu, "sum": lambda x: x.sum(-1, keepdim=True),
                "linear": lambda x: F.linear(x, plain(7, 16), plain(7)), "layer_norm": lambda x: F.layer_norm(x, (16,), plain(16), plain(16)),
                "matmul": lambda x: torch.matmul(x, x.transpose(1, 2)), "dropout": lambda x: F.dropout(x, 0.3), "select": lambda x: x[0].sum() + x[1].mean(),
            }.items()
        },
        "nested reads": lambda: [one()._nested_tensor_size(), one()._nested_tensor_strides(), one()._nested_tensor_storage_offsets(), torch.isposinf(one()), torch.isneginf(one()), one().copy_(one(3)), one().detach()],
        "nested dtype": lambda: one().to(torch.float64),
    }  # fmt: skip


def _nested_backward(function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    parts = [plain(size, 16, stream=size, low=0.1, high=0.9).requires_grad_() for size in (5, 3, 8)]
    output = function(torch.nested.as_nested_tensor(parts))
    dense = torch.nested.to_padded_tensor(output, 0.0) if output.is_nested else output
    return [dense, gradients(dense, parts)]


def _encoder() -> Any:
    layer = torch.nn.TransformerEncoderLayer(48, 4, 96, batch_first=True).eval()
    with torch.no_grad():
        for stream, each in enumerate(layer.parameters()):
            each.copy_(plain(*each.shape, stream=stream + 20, low=-0.3, high=0.3))
        return [layer(plain(3, 19, 48)), layer.self_attn(*[plain(3, 19, 48)] * 3, need_weights=False)]


def _misc() -> dict[str, Callable[[], Any]]:
    positive = plain(101, low=0.2, high=5.0)
    image = plain(2, 3, 13, 11)
    return {
        "shifts": lambda: [integers(33, below=50) << 2, integers(33, below=50) >> 1, ATEN.__ilshift__(integers(33, below=50), 2), ATEN.__irshift__(integers(33, below=50), 2)],
        "aminmax": lambda: [torch._aminmax(positive), torch.aminmax(plain(7, 9), dim=1)],
        "gamma gradients": lambda: [_of(lambda a: torch.distributions.Gamma(a, 1.0).rsample(), positive), _of(lambda a: torch.distributions.Dirichlet(a).rsample(), positive.reshape(1, 101)), _of(lambda a: torch.distributions.Beta(a, a).rsample(), positive), _of(lambda a: torch.distributions.StudentT(a).rsample(), positive)],
        "distributions": lambda: [getattr(torch.distributions, name)(positive, positive).rsample() for name in ("Normal", "LogNormal", "Laplace", "Gumbel", "Cauchy", "Weibull", "Kumaraswamy")],
        "embedding bag in evaluation": lambda: [F.embedding_bag(integers(40, below=50), plain(50, 33), torch.tensor([0, 3, 3, 17, 29]), mode=mode) for mode in ("sum", "mean", "max")],
        "embedding with max_norm": lambda: [F.embedding(integers(40, below=50), weight := plain(50, 33), max_norm=1.0), weight],
        "attention fused choice": lambda: [F.scaled_dot_product_attention(*[plain(2, 3, 77, 40)] * 3, attn_mask=mask) for mask in (None, plain(77, 77))],
        "masked softmax": lambda: ATEN._masked_softmax(plain(2, 3, 9, 9), plain(2, 9) > 0, 3, 1),
        "transformer layer fast": _encoder,
        "stack": lambda: [torch.stack([positive, positive]), torch.stack([plain(3, 4), plain(3, 4)], -1)],
        "padding": lambda: [_of(lambda x, mode=mode: F.pad(x, (1, 2, 1, 1, 1, 0), mode=mode), plain(2, 3, 5, 6, 7)) for mode in ("reflect", "replicate", "circular", "constant")],
        "adaptive pools": lambda: [_of(F.adaptive_avg_pool1d, *[plain(2, 3, 13)] ) if False else _of(lambda x: F.adaptive_avg_pool1d(x, 5), plain(2, 3, 13)), _of(lambda x: F.adaptive_avg_pool3d(x, 3), plain(2, 3, 5, 6, 7)), _of(lambda x: F.adaptive_avg_pool2d(x, 1), image), F.adaptive_avg_pool2d(image.contiguous(memory_format=torch.channels_last), 3)],
        "adaptive pools in place": lambda: [ATEN.adaptive_avg_pool2d.out(image, [3, 3], out=torch.empty(2, 3, 3, 3)), ATEN.adaptive_avg_pool3d.out(plain(2, 3, 5, 6, 7), [3, 3, 3], out=torch.empty(2, 3, 3, 3, 3))],
        "upsample with antialias": lambda: [_of(lambda x, mode=mode: F.interpolate(x, (7, 9), mode=mode, antialias=True), image) for mode in ("bicubic", "bilinear")],
        "windows": lambda: [torch.bartlett_window(33), torch.blackman_window(33), torch.hann_window(33), torch.hamming_window(33), torch.kaiser_window(33)],
        "affine grid": lambda: _of(lambda t: F.affine_grid(t, [2, 3, 5, 6]), plain(2, 2, 3)),
        **{
            f"grid sample {mode} {padding} {str(dtype)[6:]}": partial(_grid_sample, mode, padding, dtype)
            for mode in ("bilinear", "nearest", "bicubic")
            for padding in ("zeros", "border", "reflection")
            for dtype in (torch.float32, torch.float64)
        },
        "grid sample 3d": lambda: _of(
            lambda x, g: F.grid_sample(x, g, align_corners=False), plain(1, 2, 4, 5, 6), plain(1, 3, 3, 3, 3)
        ),
        "jagged": lambda: [ATEN._jagged_to_padded_dense_forward(plain(16, 5), [torch.tensor([0, 5, 8, 16])], [8]), ATEN._padded_dense_to_jagged_forward(plain(3, 8, 5), [torch.tensor([0, 5, 8, 16])], 16)],
        "ranges": lambda: [torch.arange(0, 5, 0.3), torch.linspace(0, 1, 33), torch.logspace(0, 1, 33), ATEN.range(0, 5), torch.eye(5), torch.full((3,), 2.5), torch.tril_indices(4, 5), torch.triu_indices(4, 5)],
        "uniques": lambda: [torch.unique(integers(50, below=9), return_inverse=True, return_counts=True), torch.unique(integers(10, 3, below=2), dim=0), torch.unique_consecutive(integers(50, below=3)), torch.unique_consecutive(integers(50, 2, below=2), dim=0)],
        "matrix powers": lambda: [_of(torch.linalg.matrix_exp, plain(3, 8, 8)), torch.linalg.matrix_power(plain(8, 8), 5), _of(torch.linalg.vector_norm, plain(9, 9))],
        "eigenvalues": lambda: [torch.linalg.eigvals(plain(9, 9)), torch.linalg.eig(plain(9, 9))],
        "relu of a sum": lambda: [torch._addmm_activation(plain(5), plain(4, 7), plain(7, 5)), torch._addmm_activation(plain(5), plain(4, 7), plain(7, 5), use_gelu=True)],
        "batch norm parts": lambda: [torch.batch_norm_update_stats(image, torch.zeros(3), torch.ones(3), 0.1), ATEN._native_batch_norm_legit_no_training(image, None, None, torch.zeros(3), torch.ones(3), 0.1, 1e-5), ATEN._batch_norm_no_update(image, None, None, torch.zeros(3), torch.ones(3), 0.1, 1e-5)],
        "forward mode": _forward_mode,
        "transforms": lambda: [torch.func.vmap(torch.sin)(image), torch.func.grad(lambda x: x.sin().sum())(image), torch.func.jvp(torch.tanh, (image,), (image,)), torch.func.hessian(lambda x: x.pow(3).sum())(plain(5)), torch.func.vmap(torch.linalg.inv)(plain(3, 4, 4) + 3 * torch.eye(4))],
        "twice differentiable": lambda: [_second(function) for function in (torch.tanh, F.softplus, F.gelu, F.silu, F.glu, F.elu, F.log_softmax, F.softmax, lambda x: F.layer_norm(x, (10,)))],
        "memory": lambda: [torch.empty(3), positive.pin_memory() if False else positive.is_pinned(), positive.is_set_to(positive), torch.empty(0).set_(positive.untyped_storage()), positive.new_zeros(3), positive.resize_(101), torch.lift_fresh(positive) if hasattr(torch, "lift_fresh") else 0, positive.storage_offset(), positive.equal(positive), torch.allclose(positive, positive), positive[0].item(), bool(positive[0] > 0), positive.tolist()],
        "assertions": lambda: [torch._assert_async(torch.tensor(True)), ATEN._assert_scalar(1, "x"), ATEN._assert_tensor_metadata(positive), ATEN._functional_assert_async.msg(torch.tensor(True), "x", torch.tensor(1.0)), ATEN._is_any_true(torch.tensor([True])), ATEN._is_all_true(torch.tensor([True]))],
        "copies of views": lambda: [getattr(torch, f"{name}_copy")(plain(4, 4), *args) for name, args in (("alias", ()), ("as_strided", ((2, 2), (1, 2))), ("diagonal", ()), ("expand", ((4, 4),)), ("permute", ((1, 0),)), ("select", (0, 1)), ("slice", ()), ("split", (2,)), ("squeeze", ()), ("t", ()), ("transpose", (0, 1)), ("unbind", ()), ("unfold", (0, 2, 1)), ("unsqueeze", (0,)), ("view", ((2, 8),)), ("detach", ()))],
        "lazy": lambda: [ATEN._lazy_clone(positive), ATEN._reshape_alias(positive, [101], [1]), ATEN._reshape_copy(positive, [101]), ATEN._unsafe_view(positive, [101]), ATEN._has_same_storage_numel(positive, positive)],
        "fused cells": lambda: [ATEN._grouped_mm(plain(2, 8, 16).bfloat16(), plain(2, 16, 8).bfloat16())],
        "euclidean": lambda: [_of(torch.cdist, plain(40, 7), plain(33, 7, stream=2)), ATEN._euclidean_dist(plain(40, 7), plain(33, 7))],
        "masked scale": lambda: [ATEN.native_dropout(positive, 0.3, True)],
        "bincount and histograms": lambda: [torch.bincount(integers(50, below=9)), torch.bincount(integers(50, below=9), plain(50)), torch.histc(positive, 7), torch.histogram(positive, 7), torch.bucketize(positive, torch.arange(5.0)), torch.searchsorted(torch.arange(5.0), positive)],
        "more memory": lambda: [torch.rand_like(positive), torch.randn_like(positive), positive.dense_dim(), positive.sparse_dim(), torch.fft.fftfreq(9), torch.fft.rfftfreq(9), torch.unsafe_split_with_sizes(positive, [50, 51]), torch.unsafe_split(positive, 50), torch.ops.aten.lift(positive), torch.ops.aten.lift_fresh_copy(positive)],
        "linear combination": lambda: ATEN._compute_linear_combination(plain(5, 7), plain(3, 5)),
        "eigenvalues alone": lambda: torch.linalg.eigvals(plain(9, 9), out=torch.empty(9, dtype=torch.complex64)),
        "unique rows": lambda: ATEN.unique_dim_consecutive(integers(50, 2, below=2), 0, True, True),
        "convolution over time": lambda: _of(lambda x, w, b: torch.conv_tbc(x, w, b, 1), plain(9, 3, 5), plain(3, 5, 7), plain(7)),
        "attention choice": lambda: ATEN._fused_sdp_choice(*[plain(2, 3, 77, 40)] * 3),
        "out of ones": lambda: [torch.softmax(positive, 0, out=torch.empty(101)) if False else ATEN.softmax.int_out(positive, 0, out=torch.empty(101)), ATEN.log_softmax.int_out(positive, 0, out=torch.empty(101)), ATEN.linear.out(plain(3, 4), plain(5, 4), out=torch.empty(3, 5)), ATEN.adaptive_avg_pool1d.out(image[0], [3], out=torch.empty(0)), ATEN.adaptive_avg_pool3d_backward.grad_input(plain(2, 3, 3, 3, 3), plain(2, 3, 5, 6, 7), grad_input=torch.empty(2, 3, 5, 6, 7))],
        "batch norm functional": lambda: [ATEN._native_batch_norm_legit_functional(image, None, None, torch.zeros(3), torch.ones(3), True, 0.1, 1e-5), ATEN._batch_norm_with_update_functional(image, None, None, torch.zeros(3), torch.ones(3), 0.1, 1e-5)],
        "copies of complex views": lambda: [torch.view_as_complex_copy(plain(4, 2)), torch.view_as_real_copy(torch.view_as_complex(plain(4, 2))), ATEN._conj_copy(torch.view_as_complex(plain(4, 2))), ATEN._neg_view_copy(plain(4))],
        "nested from a mask": lambda: torch._nested_tensor_from_mask(plain(3, 7, 4), torch.arange(7)[None] < torch.tensor([[7], [3], [5]])),
    }  # fmt: skip


def _grid_sample(mode: str, padding: str, dtype: torch.dtype) -> Any:
    image, grid = plain(2, 3, 13, 11, dtype=dtype), plain(2, 5, 6, 2, dtype=dtype)
    return _of(lambda x, g: F.grid_sample(x, g, mode, padding, align_corners=False), image, grid)


def _forward_mode() -> Any:
    from torch.autograd import forward_ad

    found = []
    with forward_ad.dual_level():
        for function in (
            torch.sin,
            F.glu,
            F.gelu,
            lambda x: F.layer_norm(x, (10,)),
            lambda x: x @ x.mT,
            torch.softmax,
            F.silu,
        ):
            dual = forward_ad.make_dual(plain(4, 10), plain(4, 10, stream=1))
            found.append(
                forward_ad.unpack_dual(function(dual, -1) if function is torch.softmax else function(dual)).tangent
            )
    return found


def _second(function: Callable[..., Any]) -> Any:
    inputs = plain(4, 10).requires_grad_()
    output = function(inputs, -1) if function in (F.softmax, F.log_softmax) else function(inputs)
    (first,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
    return [first, gradients(first, [inputs])]


def _run(compute: Callable[[], Any]) -> Iterator[tuple[Any, Callable[[], Any]]]:
    def seeded() -> Any:
        seed()
        return compute()

    yield None, seeded


def cases() -> dict[str, Callable[[], Iterator[tuple[Any, Callable[[], Any]]]]]:
    """By name: a function whose items are inputs and what computes with them."""
    found = {**_foreach(), **_sparse_ones(), **_nested(), **_misc()}
    return {f"more {name}": partial(_run, compute) for name, compute in found.items()}
