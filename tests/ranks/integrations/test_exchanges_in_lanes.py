"""A loss that exchanges by functions of accelerate.utils is refused on one process too, where they do nothing."""

import pytest

from tests.support.launching import run_script

pytest.importorskip("transformers")
pytestmark = pytest.mark.ranks

TRAIN = """
    import os, torch, transformers as T
    from accelerate.utils import reduce
    from samebits.integrations.transformers import Trainer

    class Mine(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            loss = model(**inputs).loss
            if os.environ["LOGS"] == "1":
                self.accelerator.gather(loss.detach())
                return loss
            boxes = reduce(torch.tensor([float(len(inputs["labels"]))]))  # as transformers' loss of DETR
            return loss / boxes.clamp(min=1).item()

    T.set_seed(0)
    model = T.BertForSequenceClassification(T.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16))
    rows = [{"input_ids": torch.arange(8) + i, "labels": i % 2} for i in range(32)]
    arguments = T.TrainingArguments("out", per_device_train_batch_size=2, max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no")
    Mine(model=model, args=arguments, train_dataset=rows).train()
"""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_loss_that_is_divided_by_a_reduced_count_is_one_sentence(tmp_path, processes):
    ended = run_script(tmp_path, TRAIN, "-n", processes, "--lanes", "4", env={"LOGS": "0"})
    assert ended.code == 2
    assert "reduce exchanges with other ranks, and was called inside a lane (script.py:12)" in ended.err


@pytest.mark.thorough
def test_what_the_accelerator_gathers_to_log_is_free(tmp_path):
    ended = run_script(tmp_path, TRAIN, "-n", "2", "--lanes", "4", env={"LOGS": "1"})
    assert ended.code == 0, ended.err
