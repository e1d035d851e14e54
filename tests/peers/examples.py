"""`python -m tests.peers.examples TRANSFORMERS TRL [NAME...]`: public scripts with one changed import, and everything that is promised.

TRANSFORMERS and TRL are folders with their `examples/`, fetched elsewhere, never committed; in an environment with both libraries,
datasets and evaluate. For each script: the weights that it saves on 1, 2 and 4 processes, after a resume in the middle of an
epoch, after a kill; those of the library's own class on 4 processes; the time of an update beside theirs under torchrun.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from safetensors.torch import load_file

from tests.peers.material import make
from tests.peers.public import changed, ended

ROOT = Path(__file__).parents[2]
ENOUGH_S = 150.0
SAVED = 13
"""In the middle of the second of two epochs of ten steps."""
TRAINER = ("--do_train", "--do_eval", "--output_dir", "OUT", "--per_device_train_batch_size", "4", "--num_train_epochs", "2", "--seed", "5",
           "--use_cpu", "--disable_tqdm", "true", "--report_to", "none", "--eval_strategy", "epoch", "--logging_steps", "5",
           "--learning_rate", "1e-3", "--save_strategy", "steps", "--save_steps", str(SAVED))  # fmt: skip
OWN_LOOP = ("--output_dir", "OUT", "--per_device_train_batch_size", "4", "--num_train_epochs", "2", "--seed", "5",
            "--learning_rate", "1e-3", "--checkpointing_steps", str(SAVED))  # fmt: skip


def files(kind: str) -> tuple[str, ...]:
    return ("--train_file", f"MADE/data/train-{kind}.json", "--validation_file", f"MADE/data/validation-{kind}.json")


@dataclass(frozen=True)
class Script:
    """A public script, its arguments, and how its import is changed."""

    path: str
    words: tuple[str, ...]
    mixin: str = ""
    """The Trainer of another library."""
    label: str = ""

    @property
    def own_loop(self) -> bool:
        """Whether it has a loop of its own over batches, with Accelerate."""
        return "_no_trainer" in self.path

    @property
    def name(self) -> str:
        return self.label or Path(self.path).stem

    @property
    def checkpoint(self) -> str:
        return f"step_{SAVED}" if self.own_loop else f"checkpoint-{SAVED}"


def trained(path: str, model: str, *words: str) -> Script:
    return Script(f"examples/pytorch/{path}.py", ("--model_name_or_path", f"MADE/{model}", *TRAINER, *words))


def looped(path: str, model: str, *words: str) -> Script:
    return Script(
        f"examples/pytorch/{path}_no_trainer.py", ("--model_name_or_path", f"MADE/{model}", *OWN_LOOP, *words)
    )


PICTURES = ("--train_dir", "MADE/pictures/train", "--validation_dir", "MADE/pictures/validation")
TRANSLATED = (*files("translated"), "--source_lang", "en", "--target_lang", "de")
SCRIPTS = (
    trained("text-classification/run_glue", "bert", *files("pairs"), "--max_seq_length", "32"),
    trained("language-modeling/run_clm", "gpt2", *files("texts"), "--block_size", "16", "--max_train_samples", "160"),
    trained("language-modeling/run_mlm", "bert", *files("text"), "--max_seq_length", "32", "--line_by_line"),
    trained("translation/run_translation", "t5", *TRANSLATED, "--predict_with_generate", "--max_source_length", "24", "--max_target_length", "24"),
    trained("image-classification/run_image_classification", "vit", *PICTURES, "--remove_unused_columns", "false", "--image_column_name", "image", "--label_column_name", "label"),
    trained("token-classification/run_ner", "bert", *files("words"), "--max_seq_length", "32"),
    trained("multiple-choice/run_swag", "bert", *files("choices"), "--max_seq_length", "32"),
    trained("text-classification/run_classification", "bert", *files("pairs"), "--text_column_names", "sentence1,sentence2", "--label_column_name", "label", "--max_seq_length", "32", "--shuffle_train_dataset", "--metric_name", "accuracy"),
    looped("text-classification/run_glue", "bert", *files("pairs"), "--max_length", "32"),
    looped("language-modeling/run_clm", "gpt2", *files("texts"), "--block_size", "16"),
    looped("language-modeling/run_mlm", "bert", *files("text"), "--max_seq_length", "32", "--line_by_line", "true"),
    looped("translation/run_translation", "t5", *TRANSLATED, "--num_beams", "1", "--val_max_target_length", "24", "--max_source_length", "24", "--max_target_length", "24"),
    looped("image-classification/run_image_classification", "vit", "--dataset_name", "MADE/pictures", "--image_column_name", "image", "--label_column_name", "label"),
    looped("multiple-choice/run_swag", "bert", *files("choices"), "--max_seq_length", "32"),
    looped("token-classification/run_ner", "bert", *files("words"), "--max_length", "32"),
    Script("trl/scripts/sft.py", ("--model_name_or_path", "MADE/gpt2", "--dataset_name", "MADE/data/sft", *TRAINER[2:]), "SFTTrainer"),
    Script("trl/scripts/sft.py", ("--model_name_or_path", "MADE/gpt2", "--dataset_name", "MADE/data/sft", *TRAINER[2:], "--use_peft", "--lora_r", "4", "--lora_target_modules", "c_attn", "c_proj"), "SFTTrainer", "lora"),
    Script("trl/scripts/dpo.py", ("--model_name_or_path", "MADE/gpt2", "--dataset_name", "MADE/data/dpo", *TRAINER[2:]), "DPOTrainer"),
    Script("trl/scripts/reward.py", ("--model_name_or_path", "MADE/bert", "--dataset_name", "MADE/data/dpo", *TRAINER[2:]), "RewardTrainer"),
)  # fmt: skip
MIXED = """
from samebits.integrations.transformers import TrainerMixin
import trl
class {name}(TrainerMixin, trl.{name}): pass
trl.{name} = {name}
"""


def ours(text: str, script: Script) -> str:
    """The script with samebits's class."""
    if script.mixin:
        return MIXED.format(name=script.mixin) + text
    if script.own_loop:
        return changed(text)
    name = "Seq2SeqTrainer" if "Seq2SeqTrainer(" in text else "Trainer"
    line = f"from samebits.integrations.transformers import {name}\n"
    return text.replace(
        "from transformers.utils import check_min_version\n",
        f"from transformers.utils import check_min_version\n{line}",
        1,
    )


class Trial:
    """One script, in a folder of its own.

    Args:
        made: where models and data are.
    """

    def __init__(self, script: Script, source: Path, made: Path, folder: Path) -> None:
        self.script, self._made, self._folder = script, made, folder
        text = source.read_text()
        self._number = 0
        (folder / "theirs").mkdir()
        (folder / "ours").mkdir()
        for side, written in (("theirs", text), ("ours", ours(text, script))):
            (folder / side / "script.py").write_text(f"import tests.peers.prelude\n{written}")
            for helper in source.parent.glob("*utils*.py"):
                shutil.copy(helper, folder / side)

    def run(self, side: str, launcher: tuple[str, ...], *more: str, **variables: str) -> tuple[str, Path]:
        """Weights and time, or how it ended; and the folder that it wrote."""
        self._number += 1
        out = self._folder / f"out-{self._number}"
        words = [word.replace("MADE", str(self._made)).replace("OUT", str(out)) for word in (*self.script.words, *more)]
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {
            **os.environ, **variables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false", "HF_HOME": str(self._folder / "home"),
        }  # fmt: skip
        command = [sys.executable, "-m", *launcher, str(self._folder / side / "script.py"), *words]
        code, _, err = ended(command, self._folder, environment, ENOUGH_S)
        if code is None:
            return f"not at its end after {ENOUGH_S:.0f} s", out
        if code:
            (told,) = re.findall(r"^(?:FAILED|error:).*", err, re.MULTILINE)[:1] or [err.strip()[-300:]]
            return f"exit code {code}: {told}", out
        if "KILL_AT" in variables and "was killed by signal 9" not in err and "restart" not in err:
            return "it was not killed", out
        time = (re.findall(r"^milliseconds (\S+)", err, re.MULTILINE) or ["-"])[-1]
        return f"{weights(out)} {time}", out

    def samebits(self, ranks: int, *more: str, **variables: str) -> tuple[str, Path]:
        lanes = ("--lanes", variables.pop("LANES")) if "LANES" in variables else ()
        return self.run("ours", ("samebits", "run", "-q", *lanes, "-n", str(ranks)), *more, **variables)

    def torchrun(self, ranks: int, *more: str) -> tuple[str, Path]:
        port = ("--master-port", str(29600 + self._number))
        return self.run("theirs", ("torch.distributed.run", *port, "--nproc-per-node", str(ranks)), *more)


def weights(out: Path) -> str:
    """Hash and size of what the script saved."""
    saved = [*out.glob("model.safetensors"), *out.glob("adapter_model.safetensors")]
    if not saved:
        return "nothing saved"
    digest, size = sha256(), 0.0
    for name, tensor in sorted(load_file(saved[0]).items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
        size += float(tensor.double().abs().sum())
    return f"{digest.hexdigest()[:8]} {size:.4f}"


def columns(trial: Trial) -> Iterator[tuple[str, str]]:
    """Each promise and what came of it."""
    found = {}
    folders = {}
    for ranks in (1, 2, 4):
        found[ranks], folders[ranks] = trial.samebits(ranks)
        yield f"on {ranks}", found[ranks]
    if found[1].startswith("exit code"):
        return
    yield "theirs on 4", trial.torchrun(4)[0]
    checkpoint = str(folders[2] / trial.script.checkpoint)
    for ranks in (1, 4):
        yield f"resumed on {ranks}", trial.samebits(ranks, "--resume_from_checkpoint", checkpoint)[0]
    yield "killed", trial.samebits(2, KILL_AT=str(SAVED - 1))[0]
    batch = ("--per_device_train_batch_size", "16")
    yield "ours, 2 lanes", trial.samebits(2, *batch, LANES="2")[0]
    yield "theirs on 2", trial.torchrun(2, *batch)[0]


def main(transformers: Path, trl: Path, names: list[str]) -> int:
    """0 when each script has the same weights everywhere, or is refused everywhere."""
    apart = False
    with tempfile.TemporaryDirectory() as place:
        made = Path(place) / "made"
        make(made)
        for name, kind in (("sft", "texts"), ("dpo", "preferred")):
            (made / "data" / name).mkdir()
            for part, file in (("train", "train"), ("validation", "test")):
                shutil.copy(made / "data" / f"{part}-{kind}.json", made / "data" / name / f"{file}.json")
        for script in SCRIPTS:
            if names and not any(name in (script.name, script.path) or name in script.path for name in names):
                continue
            source = (trl if script.mixin else transformers) / script.path
            folder = Path(place) / script.name
            folder.mkdir()
            told = {}
            for column, found in columns(Trial(script, source, made, folder)):
                told[column] = found
                print(f"  {script.name:40} {column:14} {found}", flush=True)
            same = {told[one].split()[0] for one in told if one.startswith(("on", "resumed", "killed"))}
            apart |= len(same) > 1
            print(f"{script.name}: {'equal' if len(same) == 1 else 'apart'}", flush=True)
            if not os.environ.get("KEEP"):
                shutil.rmtree(folder)
    return int(apart)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
