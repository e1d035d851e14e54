"""The blocks of Accelerate and Hugging Face's Trainer on a GPU: for `--first`."""

from __future__ import annotations

import sys
from dataclasses import replace

from benchmarks.gpu_day.blocks import Day
from benchmarks.gpu_day.judging import ends_with, same_bits
from benchmarks.gpu_day.tasks import COMPILED, EXAMPLES, REAL, ROOT, SHARE, Task, program, samebits

TRAINER, ACCELERATED = (str(ROOT / f"benchmarks/gpu_day/programs/{name}.py") for name in ("trainer", "accelerated"))
DIGITS = str(EXAMPLES / "integrations" / "accelerate_digits.py")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
MODELS = (
    "gpt2", "gpt2 bf16", "gpt2 fp16", "gpt2 compile", "llama bf16 checkpointing", "t5", "vit bf16", "bert", "lora bf16",
)  # fmt: skip


def tasks(day: Day) -> list[Task]:
    """Bits on ranks that share a GPU, a killed one, every launcher, and a step beside theirs."""
    is_small = day.hardware.is_pretended
    ranks, models = ("1,2", MODELS[:1]) if is_small else ("1,2,4", MODELS)
    both = ("accelerate", "sklearn")
    proved = [
        _verified("accelerate: digits", ranks, both, DIGITS),
        *(_verified(f"trainer: {words}", ranks, _needs(words), TRAINER, *words.split()) for words in models),
    ]
    if is_small:
        return proved
    accelerated = [
        _verified(f"accelerate: CNN {words}", ranks, (*both, *(("timm",) if words == "ema" else ())), ACCELERATED, *words.split())
        for words in ("bf16", "fp16", "ema")
    ]  # fmt: skip
    return [*proved, *accelerated, *ways_in_and_back(), *beside()]


def ways_in_and_back() -> list[Task]:
    """A killed process, and the other ways to start."""
    well = ends_with(0, "on cuda: weights and log")
    run = ("run", "--device", "cuda", "-n", "2", TRAINER, "gpt2", "bf16")
    alone = Task(
        "trainer: python alone",
        (sys.executable, TRAINER, "gpt2", "bf16"),
        well,
        120.0,
        ("transformers",),
        OFFLINE,
        takes_s=20,
    )
    return [
        _with(samebits("trainer: 2 ranks", *run, judge=well, needs=("transformers", COMPILED), takes_s=25)),
        _with(samebits("trainer: killed", *run, "killed", judge=well, needs=("transformers", COMPILED), takes_s=30)),
        alone,
    ]  # fmt: skip


def beside() -> list[Task]:
    """A step beside the library's own class."""
    cases = (("trainer", "gpt2", "bf16"), ("accelerated", "bf16"))
    return [
        replace(
            program(f"beside theirs: {' '.join(words)}", "beside", *words, limit_s=170.0, needs=("transformers", REAL), takes_s=80),
            is_alone=True,
            variables=OFFLINE,
        )
        for words in cases
    ]  # fmt: skip


def _needs(words: str) -> tuple[str, ...]:
    return ("transformers", *(("peft",) if "lora" in words else ()), *(("triton", REAL) if "compile" in words else ()))


def _verified(name: str, ranks: str, needs: tuple[str, ...], *script: str) -> Task:
    words = ("verify", "--device", "cuda", "--ranks", ranks, "--steps", "10", "--json", *script)
    return _with(samebits(name, *words, judge=same_bits, limit_s=170.0, needs=(*needs, COMPILED), takes_s=35))


def _with(task: Task) -> Task:
    return replace(task, variables={**SHARE, **OFFLINE})
