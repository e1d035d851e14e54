"""Small models with random weights and made data, in folders as a hub's: what public scripts are given to train."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

# isort: off
import tests.peers.vision_operators  # noqa: F401 - before transformers

# isort: on
import torch
import transformers as hf
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = [f"w{number}" for number in range(60)]
SPECIAL = ["<pad>", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "</s>"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
VOCABULARY = len(SPECIAL) + len(WORDS)
ROWS = {"train": 160, "validation": 45}


def make(folder: Path) -> None:
    """Write all of it."""
    hf.set_seed(1)
    bert: dict[str, Any] = {"vocab_size": VOCABULARY, "max_position_embeddings": 128, "pad_token_id": 0, **SIZES}
    made = {
        "gpt2": hf.GPT2LMHeadModel(
            hf.GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=2, pad_token_id=0, bos_token_id=2, eos_token_id=5)
        ),
        "bert": hf.BertForMaskedLM(hf.BertConfig(**bert)),
        "t5": hf.T5ForConditionalGeneration(
            hf.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, decoder_start_token_id=0)
        ),
        "vit": hf.ViTForImageClassification(hf.ViTConfig(image_size=16, patch_size=8, num_labels=2, **SIZES)),
    }  # fmt: skip
    for name, model in made.items():
        model.save_pretrained(folder / name)
        if name != "vit":
            tokenizer().save_pretrained(folder / name)
    hf.ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder / "vit")
    draw = random.Random(7)
    for part, count in ROWS.items():
        rows = [row(draw) for _ in range(count)]
        for kind in ("pairs", "text", "texts", "words", "translated", "choices", "preferred"):
            write(folder / "data" / f"{part}-{kind}.json", [picked(kind, one) for one in rows])
    pictures(folder / "pictures")


def tokenizer() -> Any:
    """Of whole words."""
    words = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A </s>", pair="[CLS] $A [SEP] $B </s>", special_tokens=[("[CLS]", 2), ("[SEP]", 3), ("</s>", 5)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=words, model_max_length=64, pad_token="<pad>", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", bos_token="[CLS]", eos_token="</s>",
    )  # fmt: skip


def row(draw: random.Random) -> dict[str, Any]:
    first, second, third = ([draw.choice(WORDS) for _ in range(draw.randint(4, 14))] for _ in range(3))
    return {"first": first, "second": second, "third": third, "label": int(first[0] < "w3"), "at": draw.randrange(2)}


def picked(kind: str, one: dict[str, Any]) -> dict[str, Any]:
    """A row as a task wants it."""
    first, second, third = (" ".join(one[name]) for name in ("first", "second", "third"))
    return {
        "pairs": {"sentence1": first, "sentence2": second, "label": one["label"]},
        "text": {"text": first},
        "texts": {"text": f"{first} {second} {third}"},
        "words": {"tokens": one["first"], "ner_tags": ["A" if word < "w3" else "B" for word in one["first"]]},
        "translated": {"translation": {"en": first, "de": " ".join(reversed(one["first"]))}},
        "choices": {
            "sent1": first, "sent2": "", "ending0": second, "ending1": third, "ending2": first, "ending3": f"{second} {third}",
            "label": one["at"],
        },
        "preferred": {"prompt": first, "chosen": f" {second}", "rejected": f" {third}"},
    }[kind]  # fmt: skip


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(map(json.dumps, rows)))


def pictures(folder: Path) -> None:
    """Noise that is brighter in one class."""
    draw = torch.Generator().manual_seed(3)
    for part, count in ROWS.items():
        for number in range(count):
            label = number % 2
            noise = torch.randint(0, 200, (16, 16, 3), generator=draw, dtype=torch.uint8) + 50 * label
            place = folder / part / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(noise.numpy()).save(place / f"{number:03}.png")
