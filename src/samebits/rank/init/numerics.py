"""What makes one lane's bits repeatable on one machine: threads, deterministic kernels, no choice of kernels by speed; and what keeps a script's own lines from undoing it."""

from __future__ import annotations

import difflib
import os
import platform
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.utils import deterministic

from samebits.errors import UsageError
from samebits.machine.torch_private import has_kernel, if_imported, operator_names
from samebits.machine.torch_versions import release
from samebits.notices import say
from samebits.protocol import late_settings
from samebits.rank.transport.contract import Transport

ENVIRONMENT = (late_settings.WORKSPACE, "TORCHINDUCTOR_DETERMINISTIC", "PYTHONHASHSEED")
"""Variables that libraries read; PYTHONHASHSEED is set by `samebits run`."""

ROUNDED = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
"""Whose kernels may round float32 operands to TF32 or bfloat16: torch's new names, which show what was set by the old ones;
to read the old ones raises once a script has used the new."""

MOST_COMPILED = 64
"""How many times one function is compiled, for different sizes; torch's own limit is 8."""
MOST_NAMED = 4
"""Ranks of one device in a sentence."""


def set_numerics(threads: int, *, exact: bool = True) -> None:
    """Set this process's threads and turn deterministic kernels on or off. Call before the first operation.

    An operation without a deterministic form raises when it is called; torch names it.
    """
    torch.set_num_threads(threads)
    # `use_deterministic_algorithms` would import the compiler, which takes two seconds.
    torch.set_deterministic_debug_mode("error" if exact else "default")
    torch.backends.cudnn.deterministic = exact
    torch.backends.cudnn.benchmark = not exact
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1" if exact else "0"
    if (inductor := if_imported("inductor_settings")) is not None:
        inductor.deterministic = exact
    if exact:
        if late_settings.IS_LATE:
            say(late_settings.TOO_LATE)
        # torch's switch would fill new buffers with NaN, which costs time.
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def flags() -> dict[str, Any]:
    """Every setting of this process that decides how kernels round, by its name in torch; for the record."""
    dynamo = if_imported("compiler_settings")
    return {
        "torch.deterministic_debug_mode": torch.get_deterministic_debug_mode(),
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        **{f"{name}.fp32_precision": attrgetter(f"{name}.fp32_precision")(torch.backends) for name in ROUNDED},
        "dynamo.automatic_dynamic_shapes": None if dynamo is None else dynamo.automatic_dynamic_shapes,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        **{name: os.environ.get(name) for name in ENVIRONMENT},
    }


def rounded_to(device: str) -> list[str]:
    """The dtypes to which kernels of a kind of device ("cpu", "cuda") may round float32 operands, as the script has set it."""
    here = [name for name in ROUNDED if name.startswith("mkldnn") == (device == "cpu")]
    settings = {attrgetter(f"{name}.fp32_precision")(torch.backends) for name in here}
    return sorted({"tf32": "tfloat32", "bf16": "bfloat16"}[one] for one in settings & {"tf32", "bf16"})


def set_compiler() -> None:
    """Keep a lane's bits under `torch.compile` independent of earlier lanes; call it again once torch is imported further.

    torch's optimizers and torch.compile import the compiler; without it nothing is compiled.
    """
    config = if_imported("compiler_settings")
    if config is None or (config.fail_on_recompile_limit_hit and not config.automatic_dynamic_shapes):
        return
    # [Note: each lane size is compiled by itself]
    # Automatic dynamic shapes would compile a second size differently on a rank that saw another size first. There are few
    # sizes: full, larger, partial; training and evaluation. Past `MOST_COMPILED` of them torch would compute without the
    # compiler, from a step on that depends on the lanes that a rank carries, so it raises (`torch_words.mistake_in`).
    config.automatic_dynamic_shapes = False
    config.fail_on_recompile_limit_hit = True
    config.recompile_limit = max(config.recompile_limit, MOST_COMPILED)


def device_name(device: torch.device) -> str:
    """`NVIDIA H200`, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def unlike_devices(names: Sequence[str]) -> str:
    """What to say where ranks compute on different devices, by the name of each rank's; empty where all are alike."""
    if len(set(names)) < 2:
        return ""
    groups = []
    for name in dict.fromkeys(names):
        ranks = [str(rank) for rank, other in enumerate(names) if other == name]
        more = [f"{len(ranks) - MOST_NAMED} more"] if len(ranks) > MOST_NAMED else []
        groups.append(f"{name} on rank{'s' if len(ranks) > 1 else ''} {', '.join([*ranks[:MOST_NAMED], *more])}")
    return f"the ranks' devices differ, and bits depend on them: {'; '.join(groups)}. On devices of one kind they are equal."


def unlike_hashes(hashes: Sequence[int]) -> str:
    """What to say where Python hashes strings in another way on each rank, by each rank's hash of one; else empty."""
    if len(set(hashes)) < 2:
        return ""
    return (
        "strings hash differently on the ranks, so a set of them has another order on each, and bits may depend on it: start "
        "every rank with PYTHONHASHSEED=0, as `samebits run` does."
    )


ANY_CPU = "any with AVX2"
"""What a fingerprint says of the CPU under numerics="portable"."""


def fingerprint(device: torch.device, threads: int, numerics: str | None) -> dict[str, Any]:
    """What the bits depend on besides the script and its data."""
    is_portable = numerics == "portable"
    return {
        "torch": release(torch.__version__) if is_portable else torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": ANY_CPU if is_portable else torch.backends.cpu.get_cpu_capability(),
        "device": device_name(device),
        "threads": threads,
    }


KEYS = ("CPU", "CUDA")
"""torch's names for the kinds of kernels that are wrapped. `torch.compile` asks others for shapes; they raise as ever."""
NAMESPACE = "aten"

_wrapped: list[torch.library.Library] = []
"""What is wrapped in this process; it lasts as long as the library object."""


def allow(operators: Sequence[str]) -> None:
    """Let these operators, and no others, run without a deterministic form. Call after `set_numerics`.

    Args:
        operators: names as in torch.ops.aten, without what is behind a dot. A name stands for all that begin with it at
            a "_": "nll_loss2d" for its forward and its backward.

    Raises:
        UsageError: when torch has no such operator.
    """
    while _wrapped:
        _wrapped.pop()._destroy()  # type: ignore[no-untyped-call]  # noqa: SLF001 - else whenever it is collected
    if not operators:
        return
    known = [name for name in operator_names() if name.startswith(f"{NAMESPACE}::")]
    library = torch.library.Library(NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
    _wrapped.append(library)
    for name in {overload: None for operator in operators for overload in overloads(operator, known)}:
        for key in KEYS:
            if has_kernel(name, key):
                _wrap(library, name, key)


def refuse_several_devices(operators: Sequence[str]) -> None:
    """Raise `UsageError` if any operator is allowed, in a process that computes on several devices.

    Autograd has a thread for each; a kernel of another one could run while the switch is off, and nobody would know.
    """
    if operators:
        raise UsageError(
            f"`allow` ({', '.join(operators)}) needs one device in each process, but the model is on several here.",
            "Leave the model on one device, or start as many ranks as GPUs.",
        )


def overloads(operator: str, known: Iterable[str]) -> list[str]:
    """All overloads of an operator, forward and backward, among the `known` ones ("aten::cumsum.out").

    Raises:
        UsageError: when there is none, with what is spelled alike.
    """
    wanted = operator.removeprefix(f"{NAMESPACE}::").strip("_")
    bare = {name: _bare(name) for name in known}
    found = [name for name, word in bare.items() if word == wanted or word.startswith(f"{wanted}_")]
    if wanted and found:
        return found
    alike = difflib.get_close_matches(wanted, sorted({*bare.values()}), n=1)
    raise UsageError(
        f"`allow` names {operator!r}, but torch has no such operator.",
        f"Try {alike[0]}." if alike else "Take the name that the error about it says.",
    )


def _bare(name: str) -> str:
    return name.partition("::")[2].partition(".")[0].strip("_")


def _wrap(library: torch.library.Library, name: str, key: str) -> None:
    kernel = torch.library.get_kernel(name, key)
    # Torch warns that the kernel is replaced, which is what we want.
    with warnings.catch_warnings(action="ignore"):
        bare = name.partition("::")[2]
        library.impl(bare, _freely(kernel), key, with_keyset=True)  # type: ignore[no-untyped-call]


def _freely(kernel: Any) -> Callable[..., Any]:
    def run(keys: Any, *args: Any, **named: Any) -> Any:
        before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("default")
        try:
            return kernel.call_boxed(keys, *args, **named)
        finally:
            torch.set_deterministic_debug_mode(before)

    return run


@dataclass(frozen=True)
class _Setting:
    name: str
    """The script's line; {0} is what it says."""
    wanted: Any
    look: Callable[[], Any]
    put: Callable[[Any], object]
    why: str
    """{0} is what it was set to, {1} what it is set back to."""


class KeptNumerics:
    """What `set_numerics` set, for as long as the run lasts; nothing is kept unless `exact`."""

    def __init__(self, threads: int, *, exact: bool) -> None:
        self._settings = _settings(threads) if exact else ()
        self._looks, self._wanted = [one.look for one in self._settings], [one.wanted for one in self._settings]
        self._said: set[str] = set()

    def keep(self) -> None:
        """Set back what the script has changed, and say so, once for each setting."""
        if self._settings:
            set_compiler()
        if [look() for look in self._looks] == self._wanted:
            return
        for setting in self._settings:
            found = setting.look()
            if found == setting.wanted:
                continue
            setting.put(setting.wanted)
            if setting.name not in self._said:
                self._said.add(setting.name)
                say(f"{setting.name.format(found)} in the script is taken back: {setting.why.format(found)}")


def _stance() -> str:
    """The compiler's stance if it depends on what came first; those that do not count as the default."""
    frames = if_imported("compiler_stance")
    found: str = frames._stance.stance if frames is not None else "default"  # noqa: SLF001 - torch has no name for it
    return "default" if found in ("force_eager", "fail_on_recompile") else found


def _settings(threads: int) -> tuple[_Setting, ...]:
    cudnn = torch.backends.cudnn
    return (
        _Setting(
            "torch.set_num_threads({0})",
            threads,
            torch.get_num_threads,
            torch.set_num_threads,
            f"threads change bits, and this run has {threads}. Write samebits.init(threads={{0}}), or --threads {{0}}, for more.",
        ),
        _Setting(
            "torch.backends.cudnn.benchmark = {0}",
            False,
            lambda: cudnn.benchmark,
            lambda value: setattr(cudnn, "benchmark", value),
            'it chooses kernels by timing. numerics="fast" allows that.',
        ),
        _Setting(
            "torch.backends.cudnn.deterministic = {0}",
            True,
            lambda: cudnn.deterministic,
            lambda value: setattr(cudnn, "deterministic", value),
            'the bits would differ from run to run. numerics="fast" allows that.',
        ),
        _Setting(
            "torch.set_deterministic_debug_mode({0}), or what does the same,",
            2,
            torch.get_deterministic_debug_mode,
            torch.set_deterministic_debug_mode,
            "operations without a deterministic form must raise. `allow=` lets single ones through.",
        ),
        _Setting(
            "suppress_errors = {0} for torch.compile",
            False,
            lambda: getattr(if_imported("compiler_settings"), "suppress_errors", False),
            lambda value: setattr(if_imported("compiler_settings"), "suppress_errors", value),
            "a rank on which a compilation fails would continue without the compiler, with other bits.",
        ),
        _Setting(
            "torch.compiler.set_stance({0!r})",
            "default",
            _stance,
            torch.compiler.set_stance,
            "which lanes are computed without the compiler would depend on the number of ranks.",
        ),
    )


def agree_on_settings(transport: Transport, mine: Sequence[Any], device: torch.device | None) -> None:
    """Compare what every rank has to have, and name what makes bits differ. Collective: call it on every rank."""
    kind = device_name(device) if device is not None else ""
    # Hashes of texts differ between processes where PYTHONHASHSEED is not set.
    gathered = transport.all_gather_object([*mine, kind, hash("samebits")], "init")
    *same, devices, hashes = zip(*gathered, strict=True)
    names = ("seed", "lanes", "threads", "precision", "numerics", "allow")
    for name, values in zip(names, same, strict=True):
        if len(set(values)) > 1:
            raise UsageError(
                f"`{name}` must be the same on every rank, but the ranks have {list(values)}.",
                "Give every rank the same value.",
            )
    if transport.rank == 0:
        for note in filter(None, (unlike_devices(devices), unlike_hashes(hashes))):
            say(note)
