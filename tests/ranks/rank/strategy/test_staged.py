"""A model cut into stages has the bits of the whole one, and each rank holds only its part."""

import pytest

from samebits.protocol.layout.mesh import Form
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts.staged_corners import CORNERS, LOOPS, all_of
from tests.scripts.staged_mistakes import MISTAKES
from tests.scripts.staged_models import train
from tests.scripts.staged_others import MODELS_OF_OTHERS
from tests.scripts.uncuttable_models import UNCUTTABLE
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

SENTENCES = MISTAKES | UNCUTTABLE

PIPELINES = [
    (2, Form("pipeline")),
    (2, Form("pipeline", schedule="gpipe")),
    (3, Form("pipeline")),
    (4, Form(mesh="pipeline=2,ddp=2")),
    (4, Form(mesh="ddp=2,pipeline=2")),
]
FORMS = [
    (2, Form("model_parallel")),
    (3, Form("model_parallel")),
    (4, Form(mesh="model_parallel=2,ddp=2")),
]


@promise(
    "shares-of-an-update-stages-of-a-model",
    "`model_parallel` and `pipeline` (GPipe, 1F1B), also times `ddp`, have the bits of one rank: "
    "parameters, optimizer state, buffers, losses, norms, evaluation; each rank holds its layers only",
    also=["test_a_pipeline_has_the_bits_of_one_rank"],
)
@pytest.mark.parametrize(
    ("which", "in_one_call"),
    [
        ("tokens", True),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (("images", True), ("tokens", False), ("images", False), ("tied", True), ("tied", False))
        ),
    ],
)
def test_model_parallel_has_the_bits_of_one_rank(which, in_one_call, tmp_path):
    compare(which, in_one_call, FORMS, tmp_path)


@pytest.mark.parametrize(
    ("which", "forms"),
    [
        pytest.param("tokens", PIPELINES[2:4], id="tokens in two forms"),
        *(pytest.param(one, PIPELINES, id=one, marks=pytest.mark.thorough) for one in ("tokens", "images", "tied")),
    ],
)
def test_a_pipeline_has_the_bits_of_one_rank(which, forms, tmp_path):
    compare(which, True, forms, tmp_path)


def compare(which, in_one_call, forms, place):
    [alone] = run_ranks(train, Started(1), which, in_one_call, True, 2, str(place / "alone"))
    for number, (ranks, form) in enumerate(forms):
        state = place / str(number)
        results = run_ranks(train, Started(ranks, form=form), which, in_one_call, True, 2, str(state))
        for file in ("model.safetensors", "optimizer.safetensors"):
            assert (state / file).read_bytes() == (place / "alone" / file).read_bytes(), file
        merged = {}
        for result in results:
            assert result["losses"] == alone["losses"]
            assert result["norms"] == alone["norms"]
            assert len(result["present"]) < len(alone["present"])
            for name, value in result["held"].items():
                assert merged.setdefault(name, value) == value, name  # what is tied is held once in a replica
        assert merged == alone["held"]


@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["model_parallel", "pipeline"])
def test_corners_of_models_and_loops_have_the_bits_of_one_rank(strategy):
    compare_each(strategy, CORNERS | (LOOPS if strategy == "model_parallel" else {}))


@pytest.mark.parametrize("strategy", [pytest.param("model_parallel", marks=pytest.mark.thorough), "pipeline"])
def test_hooks_that_look_at_gradients_see_those_of_one_lane_as_on_one_rank(strategy):
    compare_each(strategy, {name: CORNERS[name] for name in ("hooks_that_write", "module_hooks_that_look")})


@promise(
    "shares-of-an-update-stages-of-a-model",
    "In stages, tied weights, blocks called several times, encoders with decoders, and results that are"
    " dicts, dataclasses or the model's own class work",
)
@pytest.mark.thorough
@pytest.mark.parametrize("strategy", ["model_parallel", "pipeline"])
def test_models_of_other_people_have_the_bits_of_one_rank(strategy):
    compare_each(strategy, MODELS_OF_OTHERS)


def compare_each(strategy, corners):
    [alone] = run_ranks(all_of, Started(1, timeout_s=150), corners)
    results = run_ranks(all_of, Started(2, form=Form(strategy), timeout_s=150), corners)
    for name, expected in alone.items():
        assert [result[name]["losses"] for result in results] == [expected["losses"]] * 2, name
        assert results[0][name]["held"] | results[1][name]["held"] == expected["held"], name
        assert len(results[0][name]["held"]) < len(expected["held"]), name


@promise(
    "shares-of-an-update-stages-of-a-model",
    "In stages, what needs another stage's parameters, optimizers that look at several parameters at "
    "once, and models that cannot be cut raise one sentence",
)
@pytest.mark.parametrize(
    "mistake",
    [
        pytest.param(
            one,
            marks=[pytest.mark.thorough] * (one in UNCUTTABLE or one.__name__.startswith("compiled")),
            id=one.__name__,
        )
        for one in SENTENCES
    ],
)
def test_a_mistake_with_stages_is_one_sentence(mistake):
    ranks, form, sentence = SENTENCES[mistake]
    with pytest.raises(RankFailed) as caught:
        run_ranks(mistake, Started(ranks, form=form))
    assert sentence in str(caught.value)


def test_a_pipeline_needs_as_many_lanes_as_stages():
    with pytest.raises(RankFailed, match="at least as many lanes"):
        run_ranks(train, Started(2, lanes=1, form=Form("pipeline")), "images")
