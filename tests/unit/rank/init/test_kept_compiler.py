"""What would let some ranks compute without the compiler is set back before a step begins."""

import pytest
import torch

from samebits.rank.init import numerics
from samebits.rank.init.numerics import KeptNumerics


@pytest.fixture
def said(monkeypatch):
    told = []
    monkeypatch.setattr(numerics, "say", told.append)
    wanted = {"torch.compiler.set_stance({0!r})", "suppress_errors = {0} for torch.compile"}
    all_settings = numerics._settings
    monkeypatch.setattr(numerics, "_settings", lambda threads: [s for s in all_settings(threads) if s.name in wanted])
    with torch._dynamo.config.patch(
        automatic_dynamic_shapes=True, fail_on_recompile_limit_hit=False, suppress_errors=False
    ):
        yield told
    torch.compiler.set_stance("default")


def test_errors_of_the_compiler_are_not_suppressed(said):
    torch._dynamo.config.suppress_errors = True
    kept = KeptNumerics(1, exact=True)
    for _ in range(2):
        kept.keep()
    config = torch._dynamo.config
    assert (config.suppress_errors, config.fail_on_recompile_limit_hit) == (False, True)
    assert [words.partition(":")[0] for words in said] == [
        "suppress_errors = True for torch.compile in the script is taken back"
    ]


@pytest.mark.parametrize("stance", ["eager_on_recompile", "eager_then_compile"])
def test_what_comes_first_does_not_decide_what_is_compiled(said, stance):
    torch.compiler.set_stance(stance)
    KeptNumerics(1, exact=True).keep()
    assert torch._dynamo.eval_frame._stance.stance == "default"
    assert said[0].startswith(f"torch.compiler.set_stance('{stance}') in the script is taken back")


def test_a_stance_that_is_the_same_for_all_stays(said):
    torch.compiler.set_stance("force_eager")
    KeptNumerics(1, exact=True).keep()
    assert torch._dynamo.eval_frame._stance.stance == "force_eager"
    assert said == []
