"""What torch's own errors mean, found by their words: Gloo, NCCL and CUDA raise the same class for everything."""

from __future__ import annotations

import linecache
import re
import sys

from samebits.errors import UsageError
from samebits.protocol.journal.device_words import help_with_device

_PEER = re.compile(
    r"gloo/transport|Connection (closed|reset) by (remote )?peer|Broken pipe.*gloo|NCCL.*(abort|remote)", re.IGNORECASE
)
_OWN = re.compile(r"(CUDA|HIP)( driver)? error|out of memory|No space left on device", re.IGNORECASE)


def is_of_a_peer(error: BaseException) -> bool:
    """Whether a connection to another rank ended. What this rank's own device or memory did is never that."""
    text = str(error)
    return isinstance(error, RuntimeError) and _PEER.search(text) is not None and _OWN.search(text) is None


_HIDDEN_LAYERS = re.compile(r"torch\.compile hides the layers of a prepared .*")
_NO_FORM = re.compile(r"^(\S+)( .*?)? does not have a deterministic implementation", re.MULTILINE)
ON_CPU = "compute it on the CPU: `x.cpu()`, and the result back to `x.device`"
REPLACEMENTS = {
    "nll_loss2d": "give F.cross_entropy rows: `x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]), y.reshape(-1)`",
    "adaptive_avg_pool": "use nn.AvgPool2d where the output's size divides the input's",
    "bicubic": 'use `mode="bilinear"`, which has a deterministic form',
    "linear1d": 'use `mode="bilinear"` on x.unsqueeze(2), which has a deterministic form',
    "ctc_loss": "let cuDNN compute it: float32, targets in one row of int32 on the CPU, blank=0",
    "cumsum": ON_CPU,
    "histc": ON_CPU,
    "bincount": ON_CPU,
    "median": ON_CPU,
    "put_": "write `x.view(-1)[index] = values`",
}
"""Of operations without a deterministic form, by a part of torch's name, the first that fits; docs/guarantees.md has the
same."""


STEPS_ARE_OVER = (
    "where `next` takes the steps: after a restart they go on, and the script's own loop around them begins anew; let "
    "`for step in run.steps(loader, epochs=10):` be the outer loop, or count in run.state"
)


ENDINGS = {"cuda", "cpu", "gpu", "out", "template", "kernel", "max", "forward", "backward"}
"""What torch's errors add to an operator's name."""


def way_out(error: BaseException) -> str:
    """What to do about an error of torch, or an iterator that is over; empty where nothing is known."""
    if isinstance(error, StopIteration):
        return STEPS_ARE_OVER
    of_one_kind = _way_without_form(error) or _way_without_compiler(error) or help_with_device(error)
    return of_one_kind or _way_of_a_batch(error) or _way_of_a_setup(error)


_NO_GPU = re.compile(r"not compiled with CUDA|No CUDA GPUs are available|Found no NVIDIA driver")
LEAVE_OUT_CUDA = (
    'Ranks compute on the CPU here. Leave out .cuda() and .to("cuda"): models and batches of run.prepare are where they belong; '
    "for anything else write .to(run.device)."
)
ONE_GROUP = "There is a group: leave it out behind samebits.init(), or ask dist.is_initialized() first."


def _way_of_a_setup(error: BaseException) -> str:
    """What is wrong around the script: no GPU, a module that is not installed, a second group."""
    if isinstance(error, AssertionError | RuntimeError) and _NO_GPU.search(str(error)):
        return LEAVE_OUT_CUDA
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    # Of `torch.nothing` the package is there.
    if name and name.isidentifier():
        fix = f"Install it where samebits is: {sys.executable} -m pip install {name} (or the package that has {name})."
        return f"{fix} A file of yours must be beside the script, or on PYTHONPATH."
    return ONE_GROUP if "initialize the default process group twice" in str(error) else ""


_TURN = re.compile(r"\s*for (\w+) in (\w+)\s*:")


def _way_of_a_batch(error: BaseException) -> str:
    """What to write where `for step in loader`, whose turns are batches to evaluate, was meant as the loop over steps."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not isinstance(error, ValueError) or "values to unpack" not in str(error):
        return ""
    frame = trace.tb_frame
    words = linecache.getline(frame.f_code.co_filename, trace.tb_lineno)
    for line in range(trace.tb_lineno - 1, 0, -1):
        turn = _TURN.match(linecache.getline(frame.f_code.co_filename, line))
        if turn and re.search(rf"\bin {turn[1]}\b", words):
            loader = frame.f_locals.get(turn[2], frame.f_globals.get(turn[2]))
            if type(loader).__name__ in {"PreparedLoader", "PreparedStream"}:
                return (
                    f"To train write `for {turn[1]} in run.steps({turn[2]})`: {turn[2]} itself has batches to evaluate."
                )
            break
    return ""


_LIMIT = re.compile(r"exceeding the (\w+) .*?currently set to (\d+)")


def mistake_in(error: BaseException) -> BaseException:
    """`error`, or the mistake that it means: more sizes than torch compiles a function for (`numerics.set_compiler`)."""
    if type(error).__name__ != "FailOnRecompileLimitHit":
        return error
    found = _LIMIT.search(str(error.__cause__))
    name, limit = found.groups() if found else ("recompile_limit", "so many")
    mistake = UsageError(
        f"A function under torch.compile was called with more than {limit} different sizes or numbers. Past that torch "
        "computes without the compiler, on each rank from another step on, with other bits.",
        "Let collate_fn pad to a few sizes (the next multiple of 64), pass numbers that change as tensors, or allow more by "
        f"`torch.compiler.config.{name} = 1000`.",
    )
    return mistake.with_traceback(error.__traceback__)


def _way_without_compiler(error: BaseException) -> str:
    """What stages raised inside the compiler, which turns it into its own error (`refuse_being_compiled`)."""
    found = _HIDDEN_LAYERS.search(str(error)) if isinstance(error, RuntimeError) else None
    return found[0] if found is not None else ""


def _way_without_form(error: BaseException) -> str:
    """What to do about an operation that has no deterministic form."""
    found = _NO_FORM.search(str(error)) if isinstance(error, RuntimeError) else None
    if found is None:
        return ""
    replacement = next((words for part, words in REPLACEMENTS.items() if part in found[1]), "")
    operator = operator_of(found[1])
    instead = f"To keep exact numerics, {replacement}. " if replacement else ""
    return (
        f'{instead}--allow {operator} (`samebits.init(allow=["{operator}"])`) allows it, and only what passes through it may '
        f"have other bits; --numerics fast allows everything, without the promise of equal bits."
    )


def operator_of(said: str) -> str:
    """The operator's name in torch.ops.aten, up to its forward or backward, for the name in torch's error."""
    words = said.strip("_").replace("unpooling", "unpool").split("_")
    while len(words) > 1 and words[-1] in ENDINGS:
        words.pop()
    return "_".join(words)
