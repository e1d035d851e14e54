"""What a run says goes through the logger `samebits`; what it does is shown in torch's profiles."""

import contextlib
import io
import logging
import logging.config

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

import samebits
from samebits.notices import say
from samebits.testing.ranks import Started, run_ranks
from tests.scripts.scenarios import digits, mlp


def ranges():
    run = samebits.init(seed=0, lanes=4, threads=1)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=32))
    for step in run.steps(loader):
        with profile(activities=[ProfilerActivity.CPU]) as shown:
            for images, labels in step:
                run.backward(F.cross_entropy(model(images), labels))
        break
    return sorted({event.key for event in shown.key_averages() if event.key.startswith("samebits: ")})


@pytest.mark.ranks
def test_lanes_buckets_and_waits_are_ranges_of_a_profile():
    first, second = run_ranks(ranges, Started(2, lanes=4))
    waits = [
        "samebits: reduce bucket 0",
        "samebits: step 1 pass 1",
        "samebits: the exchange of gradients (bucket 0, first 3.bias)",
    ]
    assert first == ["samebits: lane 0", "samebits: lane 1", *waits]
    assert second == ["samebits: lane 2", "samebits: lane 3", *waits]


def said(text):
    with contextlib.redirect_stderr(io.StringIO()) as stream:
        say(text)
    return stream.getvalue()


def test_notices_go_through_the_logger_and_may_be_silenced():
    assert said("a\x1b[2J\nb") == "samebits: a\\x1b[2J\n  b\n"
    logger = logging.getLogger("samebits")
    logger.setLevel(logging.WARNING)
    try:
        assert said("anything") == ""
    finally:
        logger.setLevel(logging.INFO)


def test_a_configuration_of_logging_does_not_silence_them_by_accident():
    logging.config.dictConfig({"version": 1})  # disables every logger that exists
    assert said("still here") == "samebits: still here\n"
