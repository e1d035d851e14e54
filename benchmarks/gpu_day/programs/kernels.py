"""Which kernels give the same bits twice, forward and backward, under deterministic algorithms: `kernels.py [--quick]`.

Each operation runs `TIMES` times on equal inputs, in float32 and bfloat16; the hash of what came out is kept, so that two
kinds of GPU can be compared by their records.
"""

import hashlib
import json
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
import torch.nn.functional as F
from torch import nn

TIMES = 3


def made(*shape, dtype, scale=1.0):
    return (torch.randn(*shape, device="cuda") * scale).to(dtype).requires_grad_()


def numbers(most, *shape):
    return torch.randint(0, most, shape, device="cuda")


def on(function, *inputs):
    return lambda: (function(*inputs), [one for one in inputs if one.requires_grad])


def layer(module, *inputs):
    module = module.to("cuda", inputs[0].dtype)

    def call():
        out = module(*inputs)
        out = out[0] if isinstance(out, tuple) else out
        return out, [*[one for one in inputs if one.requires_grad], *module.parameters()]

    return call


def operations(dtype, quick):
    """Name -> a function of no arguments to (what to differentiate, its inputs)."""
    n = 2 if quick else 16
    pictures, text = made(n, 16, 32, 32, dtype=dtype), made(n, 32, 64, dtype=dtype)
    return layers(text, pictures) | functions(text, pictures)


def layers(text, pictures):
    volume = made(2, 4, 8, 16, 16, dtype=text.dtype)
    return {
        "linear": layer(nn.Linear(64, 128), text),
        "conv1d": layer(nn.Conv1d(32, 48, 5), text),
        "conv2d 1x1": layer(nn.Conv2d(16, 64, 1), pictures),
        "conv2d 3x3": layer(nn.Conv2d(16, 64, 3, padding=1), pictures),
        "conv2d 7x7, stride 2": layer(nn.Conv2d(16, 64, 7, 2, 3), pictures),
        "conv2d depthwise": layer(nn.Conv2d(16, 16, 3, padding=1, groups=16), pictures),
        "conv2d channels_last": layer(nn.Conv2d(16, 64, 3).to(memory_format=torch.channels_last), pictures.detach().to(memory_format=torch.channels_last).requires_grad_()),
        "conv3d": layer(nn.Conv3d(4, 8, 3), volume),
        "conv_transpose2d": layer(nn.ConvTranspose2d(16, 8, 4, 2, 1), pictures),
        "batch_norm": layer(nn.BatchNorm2d(16), pictures),
        "layer_norm": layer(nn.LayerNorm(64), text),
        "group_norm": layer(nn.GroupNorm(4, 16), pictures),
        "rms_norm": layer(nn.RMSNorm(64), text),
        "lstm": layer(nn.LSTM(64, 48, 2, batch_first=True), text),
        "gru": layer(nn.GRU(64, 48, 2, batch_first=True), text),
        "encoder layer": layer(nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True), text),
    }  # fmt: skip


def functions(text, pictures):
    n, dtype = len(text), text.dtype
    table, where, rows = made(50, 64, dtype=dtype), numbers(50, n * 32), made(n * 32, 64, dtype=dtype)
    heads = [made(2, 4, 16 * n, 64, dtype=dtype) for _ in range(3)]
    mask = torch.zeros(16 * n, 16 * n, device="cuda", dtype=dtype)
    return {
        "bmm": on(torch.bmm, made(n, 64, 48, dtype=dtype), made(n, 48, 64, dtype=dtype)),
        "einsum": on(lambda a, b: torch.einsum("bij,bkj->bik", a, b), text, made(n, 16, 64, dtype=dtype)),
        "gelu": on(F.gelu, text),
        "softmax": on(lambda a: F.softmax(a, -1), text),
        "cross_entropy": on(lambda a: F.cross_entropy(a, numbers(64, n * 32).fill_(3)), rows),
        "embedding": on(lambda a: F.embedding(where, a), table),
        "embedding_bag": on(lambda a: F.embedding_bag(where.view(n, 32), a), table),
        "index": on(lambda a: a[where], table),
        "index_add": on(lambda a, b: a.index_add(0, where, b), table, rows),
        "index_put, accumulating": on(lambda a, b: a.index_put((where,), b, accumulate=True), table, rows),
        "scatter_add": on(lambda a, b: a.scatter_add(0, where[:, None].expand(-1, 64), b), table, rows),
        "gather": on(lambda a: a.gather(0, where[:, None].expand(-1, 64)), table),
        "cumsum": on(lambda a: a.cumsum(1), text),
        "max_pool2d": on(lambda a: F.max_pool2d(a, 3, 2, 1), pictures),
        "avg_pool2d": on(lambda a: F.avg_pool2d(a, 2), pictures),
        "adaptive_avg_pool2d, 1": on(lambda a: F.adaptive_avg_pool2d(a, 1), pictures),
        "adaptive_avg_pool2d, 3": on(lambda a: F.adaptive_avg_pool2d(a, 3), pictures),
        "interpolate nearest": on(lambda a: F.interpolate(a, scale_factor=2), pictures),
        "interpolate bilinear": on(lambda a: F.interpolate(a, scale_factor=2, mode="bilinear"), pictures),
        "reflection pad": on(lambda a: F.pad(a, (1, 1, 1, 1), "reflect"), pictures),
        "attention": on(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), *heads),
        "attention, masked": on(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask), *heads),
        "sum": on(lambda a: a.sum(), pictures),
        "var": on(lambda a: a.float().var(), pictures),
        "logsumexp": on(lambda a: a.logsumexp(-1), text),
        "sort": on(lambda a: a.sort(-1).values, text),
        "topk": on(lambda a: a.topk(5).values, text),
        "norm of gradients": on(lambda *some: nn.utils.get_total_norm(some), table, rows, text),
    }  # fmt: skip


def digest(tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:12]


def once(call):
    """What comes out, and the gradients."""
    out, inputs = call()
    if not out.requires_grad:
        return digest([out])
    weights = torch.linspace(-1, 1, out.numel(), device="cuda").view(out.shape).to(out.dtype)
    gradients = torch.autograd.grad((out * weights).sum(), inputs, allow_unused=True)
    return digest([out, *(one for one in gradients if one is not None)])


def tried(call):
    """The hash, "DIFFERS", or why it does not run."""
    try:
        found = {once(call) for _ in range(TIMES)}
    except (RuntimeError, TypeError) as error:
        return f"raises: {str(error).splitlines()[0][:150]}"
    return found.pop() if len(found) == 1 else "DIFFERS"


def updates(dtype):
    """An optimizer's steps, in its three forms."""

    def trained(cls, **how):
        torch.manual_seed(0)
        parameters = [made(shape, dtype=dtype) for shape in (1000, 37, 4096)]
        optimizer = cls(parameters, lr=1e-2, **how)
        for _ in range(3):
            for one in parameters:
                one.grad = torch.randn_like(one)
            optimizer.step()
        return digest(parameters)

    forms = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    kinds = {"AdamW": (torch.optim.AdamW, {}), "SGD": (torch.optim.SGD, {"momentum": 0.9})}
    found = {}
    for kind, (cls, more) in kinds.items():
        for form, how in forms.items():
            try:
                some = {trained(cls, **more, **how) for _ in range(TIMES)}
                found[f"{kind}, {form}"] = some.pop() if len(some) == 1 else "DIFFERS"
            except RuntimeError as error:
                found[f"{kind}, {form}"] = f"raises: {str(error).splitlines()[0][:150]}"
    return found


def main():
    torch.use_deterministic_algorithms(True)
    quick = "--quick" in sys.argv
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        short = str(dtype).removeprefix("torch.")
        for name, call in operations(dtype, quick).items():
            found[f"{name}, {short}"] = tried(call)
        found.update({f"{name}, {short}": what for name, what in updates(dtype).items()})
    differ = [name for name, what in found.items() if what == "DIFFERS"]
    raising = [name for name, what in found.items() if what.startswith("raises")]
    same = len(found) - len(differ) - len(raising)
    says = f"{same} of {len(found)} run, and repeat"
    says = f"{', '.join(differ)} DIFFER; {says}" if differ else says
    print(json.dumps({"ok": not differ and same > 0, "says": says, "kernels": found}), flush=True)
    os._exit(0)  # as in attention.py


if __name__ == "__main__":
    main()
