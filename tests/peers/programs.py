"""What is run: programs that come with the libraries, and scripts of ours in the shape of well-known ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
ON_THE_CPU = {"ACCELERATE_USE_CPU": "true"}
"""What `accelerate launch --cpu` sets; without it Accelerate looks for a GPU, and has one process."""


@dataclass(frozen=True)
class Program:
    """A script or module for two ranks."""

    title: str
    words: tuple[str, ...]
    """The script or `-m MODULE`, and its arguments."""
    variables: Mapping[str, str] = field(default_factory=dict)

    tells: bool = True
    """Whether it prints numbers to compare; other people's do not."""


def _of_accelerate(name: str) -> Program:
    return Program(f"accelerate {name}", ("-m", f"accelerate.test_utils.scripts.{name}"), ON_THE_CPU, tells=False)


def _of_accelerate_for_gpus(name: str) -> Program:
    return Program(f"accelerate {name}", (str(SCRIPTS / "accelerate_on_cpus.py"), name), ON_THE_CPU, tells=False)


def _ours(title: str, file: str, *arguments: str) -> Program:
    return Program(title, (str(SCRIPTS / file), *arguments))


PROGRAMS = (
    *map(_of_accelerate, ("test_ops", "test_script", "test_sync")),
    *map(_of_accelerate_for_gpus, ("test_distributed_data_loop", "test_merge_weights")),
    _ours("Lightning Trainer, DDP", "lightning_trainer.py"),
    _ours("HF Trainer", "hf_trainer.py"),
    _ours("Fabric, FSDP2", "fabric_fsdp.py"),
    _ours("shape of examples/ddp", "ddp.py"),
    _ours("shape of examples/minGPT-ddp", "char_gpt.py"),
    _ours("shape of examples/FSDP2", "fsdp2.py"),
    _ours("shape of tensor_parallel_example", "tensor_parallel.py"),
    _ours("shape of sequence_parallel_example", "tensor_parallel.py", "--sequence"),
)
