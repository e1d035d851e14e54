"""Hugging Face's Trainer with equal bits: `from samebits.integrations.transformers import Trainer`."""

from samebits.integrations import require

require("transformers", "5.20", "5.25")
require("accelerate", "1.10", "1.16")

from samebits.integrations.transformers.trainer import Seq2SeqTrainer as Seq2SeqTrainer  # noqa: E402 - a sentence comes first
from samebits.integrations.transformers.trainer import Trainer as Trainer  # noqa: E402
from samebits.integrations.transformers.trainer import TrainerMixin as TrainerMixin  # noqa: E402
