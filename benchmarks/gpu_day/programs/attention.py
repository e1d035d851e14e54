"""Which kernels of attention run under deterministic algorithms, and whether their gradients are repeatable."""

import json
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

TIMES = 5
BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")


def gradient(query, key, value):
    query.grad = None
    F.scaled_dot_product_attention(query, key, value, is_causal=True).float().sum().backward()
    return query.grad.clone()


def repeated(backend, dtype, length):
    """ "repeatable", "DIFFERS", or why it does not run."""
    torch.manual_seed(0)
    given = [torch.randn(2, 8, length, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3)]
    try:
        with sdpa_kernel(getattr(SDPBackend, backend) if backend else list(map(SDPBackend.__dict__.get, BACKENDS))):
            first, *others = [gradient(*given) for _ in range(TIMES)]
    except RuntimeError as error:
        return f"raises: {str(error).splitlines()[0][:150]}"
    return "repeatable" if all(torch.equal(first, other) for other in others) else "DIFFERS"


def main():
    torch.use_deterministic_algorithms(True)
    length = 32 if "--quick" in sys.argv else 1024
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        for backend in ("", *BACKENDS):
            found[f"{backend.lower() or 'the default'}, {str(dtype).removeprefix('torch.')}"] = repeated(
                backend, dtype, length
            )
    differ = [name for name, what in found.items() if what == "DIFFERS"]
    same = [name for name, what in found.items() if what == "repeatable"]
    says = f"{', '.join(differ)} differ from time to time" if differ else f"{len(same)} of {len(found)} run, and repeat"
    print(json.dumps({"ok": not differ and bool(same), "says": says, "kernels": found}), flush=True)
    os._exit(
        0
    )  # a thread of autograd's may still let go of Python objects; when the interpreter ends first, torch aborts


if __name__ == "__main__":
    main()
