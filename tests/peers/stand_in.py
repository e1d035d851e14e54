"""Small models and made data in the place of what public scripts download; `import stand_in` is put before each of them.

At its end the script prints the hash of the last model that it made: `weights 1f2e…`.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import random
import tempfile
from pathlib import Path
from typing import Any

# isort: off
import tests.peers.prelude  # noqa: F401 - before transformers

# isort: on
import datasets
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
)

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_made: list[torch.nn.Module] = []


def tokenizer(*_: Any, **__: Any) -> Any:
    """Of whole words."""
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join([*SPECIAL, *WORDS]))
        return BertTokenizerFast(str(vocabulary), model_max_length=64, eos_token="[SEP]", bos_token="[CLS]")


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(4, 14)))


def rows(count: int, seed: int, kind: str) -> datasets.Dataset:
    draw = random.Random(seed)
    if kind == "text":
        return datasets.Dataset.from_dict({"text": [" ".join(sentence(draw) for _ in range(3)) for _ in range(count)]})
    first = [sentence(draw) for _ in range(count)]
    labels = [int(one.split()[0] < "w3") for one in first]
    return datasets.Dataset.from_dict(
        {"sentence1": first, "sentence2": [sentence(draw) for _ in first], "label": labels, "idx": [*range(count)]}
    ).cast_column("label", datasets.ClassLabel(names=["not_equivalent", "equivalent"]))


def load_dataset(name: str, *_: Any, split: str | None = None, **__: Any) -> Any:
    kind = "text" if "wiki" in str(name) else "pairs"
    made = datasets.DatasetDict(
        train=rows(600 if kind == "text" else 110, 1, kind),
        validation=rows(220 if kind == "text" else 45, 2, kind),
        test=rows(45, 3, kind),
    )
    return made[split] if split is not None else made


def kept(model: torch.nn.Module) -> torch.nn.Module:
    _made.append(model)
    return model


def classifier(*_: Any, config: Any = None, num_labels: int = 2, **__: Any) -> Any:
    labels = getattr(config, "num_labels", num_labels)
    return kept(
        BertForSequenceClassification(
            BertConfig(vocab_size=65, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, max_position_embeddings=64, num_labels=labels)
        )
    )  # fmt: skip


def causal(*_: Any, **__: Any) -> Any:
    return kept(GPT2LMHeadModel(GPT2Config(vocab_size=65, n_positions=64, n_embd=32, n_layer=2, n_head=2)))


def at_end() -> None:
    if _made and os.environ.get("RANK", "0") == "0":
        digest = hashlib.sha256()
        size = 0.0
        for tensor in _made[-1].state_dict().values():
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
            size += float(tensor.detach().double().abs().sum())
        print("\nweights", digest.hexdigest()[:12], f"{size:.6f}", flush=True)


atexit.register(at_end)
AutoTokenizer.from_pretrained = tokenizer
AutoModelForSequenceClassification.from_pretrained = classifier
AutoModelForSequenceClassification.from_config = classifier
AutoModelForCausalLM.from_pretrained = causal
AutoModelForCausalLM.from_config = causal
AutoConfig.from_pretrained = lambda *_, num_labels=2, **__: GPT2Config(
    vocab_size=65, n_positions=64, n_embd=32, n_layer=2, n_head=2, num_labels=num_labels
)
datasets.load_dataset = load_dataset
transformers.logging.set_verbosity_error()
