"""Hugging Face's Trainer with equal bits: `from lockstep.integrations.transformers import Trainer`."""

from lockstep.integrations.transformers.trainer import Seq2SeqTrainer as Seq2SeqTrainer
from lockstep.integrations.transformers.trainer import Trainer as Trainer
from lockstep.integrations.transformers.trainer import TrainerMixin as TrainerMixin
