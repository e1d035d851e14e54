"""The arithmetic in which a run computes: its precision, and whether the order of sums and the kernels are fixed.

Names, their spellings elsewhere, and the line that says what was decided. What the names do to torch is in
`samebits.rank.strategy.precision` and `samebits.rank.init.numerics`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.errors import UsageError

PRECISIONS = ("32", "bf16-mixed", "16-mixed")
NUMERICS = ("exact", "portable", "fast")

ALIASES = {
    "32": ("32", "32-true", "fp32", "float32", "no"),
    "bf16-mixed": ("bf16-mixed", "bf16", "bfloat16"),
    "16-mixed": ("16-mixed", "16", "fp16", "float16"),
}
"""Every accepted spelling of a precision: Lightning Fabric's, Accelerate's, torch's dtypes; lower case."""

ELSEWHERE = {
    "bf16-true": "model.to(torch.bfloat16) before run.prepare, or bf16-mixed",
    "16-true": "model.half() before run.prepare, or 16-mixed",
    "64": "model.double() before run.prepare",
    "64-true": "model.double() before run.prepare",
    "fp64": "model.double() before run.prepare",
    "float64": "model.double() before run.prepare",
    "fp8": "bf16-mixed",
    "transformer-engine": "bf16-mixed",
}
"""Names that other libraries know, and the nearest thing that works here."""

NOT_EXACT = (
    'numerics="fast" leaves the order of sums and the choice of kernels to the backend, so bits may differ between '
    'numbers of ranks and from run to run. numerics="exact", the default, fixes both.'
)


@dataclass(frozen=True)
class Arithmetic:
    """What was asked for; None where nothing was. After `decided`, both are names from the lists above."""

    precision: str | None = None
    numerics: str | None = None
    """"exact": the same bits on any number of ranks; "portable": on any x86-64 CPU too; "fast": no promise."""
    allow: tuple[str, ...] = ()
    """Operators that may compute without a deterministic form under exact numerics."""

    def over(self, weaker: Arithmetic) -> Arithmetic:
        """This one, completed by a weaker one: the command line over the script."""
        allow = self.allow or (weaker.allow if self.numerics != "fast" else ())
        return Arithmetic(self.precision or weaker.precision, self.numerics or weaker.numerics, allow)

    def decided(self) -> Arithmetic:
        """The canonical names, with defaults filled in.

        Raises:
            UsageError: for an unknown name, or for `allow` where everything is allowed.
        """
        numerics, allow = numerics_named(self.numerics or "exact"), allowed_named(self.allow)
        precision = precision_named(self.precision or "32")
        if allow and numerics != "exact":
            why = "which allows everything" if numerics == "fast" else "which allows no operator to differ"
            raise UsageError(
                f'`allow` ({", ".join(allow)}) belongs to numerics="exact", but numerics is "{numerics}", {why}.',
                "Leave out one of them.",
            )
        if numerics == "portable" and precision == "16-mixed":
            raise UsageError(
                'numerics="portable" is shown for float32, float64 and bfloat16, not for 16-mixed.',
                'Use bf16-mixed, or numerics="exact".',
            )
        return Arithmetic(precision, numerics, allow)


def precision_named(name: object) -> str:
    """The precision that a spelling names; 16 and 32 may be numbers.

    Raises:
        UsageError: for an unknown one, with the nearest thing that works.
    """
    spelled = str(name).lower().replace("_", "-").removeprefix("torch.")
    for precision, spellings in ALIASES.items():
        if spelled in spellings:
            return precision
    if spelled in ELSEWHERE:
        raise UsageError(f"There is no precision {name!r} here.", f"Use {ELSEWHERE[spelled]}.")
    raise UsageError(f"There is no precision {name!r}.", f"Use one of {', '.join(PRECISIONS)}.")


def numerics_named(name: object) -> str:
    """Return `exact`, `portable` or `fast`.

    Raises:
        UsageError: for any other name.
    """
    if str(name).lower() in NUMERICS:
        return str(name).lower()
    raise UsageError(
        f'`numerics` must be "exact", "portable" or "fast", but is {name!r}.', "Leave it out for exact numerics."
    )


def allowed_named(names: object) -> tuple[str, ...]:
    """Operators' names, each once and sorted: a list of them, or text with commas between them.

    Raises:
        UsageError: for what is no list of names.
    """
    parts = names.split(",") if isinstance(names, str) else names
    if isinstance(parts, (list, tuple, set, frozenset)) and all(isinstance(part, str) for part in parts):
        words = tuple(sorted({part.strip() for part in parts}))
        if all(re.fullmatch(r"(aten::)?\w+", word) for word in words):
            return words
    raise UsageError(
        f"`allow` must be names of torch's operators, but is {names!r}.", 'Write allow=["nll_loss2d", "cumsum"].'
    )


def arithmetic_text(decided: Mapping[str, Any]) -> str:
    """What was decided, in one line; `decided` is what rank 0 wrote into decided.json.

    Settings that only GPUs have are named only there.
    """
    flags: Mapping[str, Any] = decided.get("flags") or {}
    fast = decided.get("numerics") == "fast"
    parts = [f"seed {decided.get('seed')}"]
    but = f" but for {', '.join(decided['allow'])}" if decided.get("allow") else ""
    parts.append("any kernels and order of sums: bits may differ" if fast else f"deterministic algorithms{but}")
    if decided.get("device") == "cuda":
        parts.append(f"cudnn.benchmark {'on' if flags.get('cudnn.benchmark') else 'off'}")
        parts.append(f"CUBLAS_WORKSPACE_CONFIG={flags.get('CUBLAS_WORKSPACE_CONFIG', '')}")
    precision = f", {decided['precision']}" if decided.get("precision") not in (None, "32") else ""
    return f"{decided.get('numerics')}{precision}: {', '.join(parts)}"


REASONS = {
    "hogwild": (
        "hogwild is not exact by design: ranks update shared parameters without waiting for each other, so the order "
        "of updates differs in every run."
    ),
    "dp": (
        "dp gives the bits that torch's DataParallel gives: a batch is cut by the number of replicas, and replicas on "
        "threads draw from one random generator in any order."
    ),
}


def why_not_exact(strategy: str, numerics: str | None = "exact", allow: Sequence[str] = ()) -> str:
    """Why bits may differ on other ranks, or in another run, as sentences; empty when they may not."""
    if reason := REASONS.get(strategy):
        return reason
    if numerics == "fast":
        return NOT_EXACT
    if not allow:
        return ""
    return (
        f"`allow` lets {' and '.join(allow)} compute without a deterministic form, so the bits of what passes through may "
        f"differ from run to run. Everything else is exact."
    )
