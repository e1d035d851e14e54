"""The code that the quick starts and the migration page show is the code that runs here."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import torch

import samebits
from tests.support.launching import start

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[3]
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
LANGUAGES = ("en", "zh", "ko")
MIGRATION = sorted((EXAMPLES / "migration").glob("*.py"))


def blocks_of(page: str) -> list[str]:
    return re.findall(r"^```\w+\n.*?^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def table_of(page: str) -> list[str]:
    return [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]


def test_the_quick_starts_show_the_same_code_in_every_language() -> None:
    english = blocks_of("quickstart.en.md")
    script = (EXAMPLES / "quickstart.py").read_text().partition('"""\n\n')[2]
    assert f"```python\n{script}```" in english
    for language in LANGUAGES:
        assert blocks_of(f"quickstart.{language}.md") == english
        assert table_of(f"quickstart.{language}.md") == table_of("quickstart.en.md")


def run(place: Path, script: Path, *options: str) -> None:
    ended = start(place, "-q", *options, str(script)).finish()
    assert ended.code == 0, ended.err


@pytest.mark.thorough
def test_the_quick_start_has_the_same_bits_on_one_rank_and_on_two_and_its_file_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []
    for ranks in ("1", "2"):
        run(tmp_path, EXAMPLES / "quickstart.py", "-n", ranks)
        saved.append((tmp_path / "digits.safetensors").read_bytes())
    assert saved[0] == saved[1]
    loading = [block for block in blocks_of("quickstart.en.md") if "load" in block and "python" in block][1:]
    program = "\n".join(block.partition("\n")[2].removesuffix("```") for block in loading)
    assert ("samebits.load_weights(" in program, "load_file(" in program) == (True, True)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "the loading of the quick start", "exec"), {})


def test_the_migration_page_quotes_its_files() -> None:
    quoted = re.findall(r"<!-- from (\S+) -->\n```python\n(.*?)```", (DOCS / "migration.md").read_text(), re.DOTALL)
    assert {Path(name).name for name, _ in quoted} == {path.name for path in MIGRATION}
    for name, text in quoted:
        assert textwrap.dedent(text) in (ROOT / name).read_text(), name


def test_what_the_migration_page_recommends_exists() -> None:
    page = (DOCS / "migration.md").read_text()
    named = set(re.findall(r"`run\.(\w+)", page)) - {"device"}
    assert len(named) > 10
    assert [name for name in named if not hasattr(samebits.Run, name)] == []
    assert [name for name in set(re.findall(r"`samebits\.(\w+)", page)) if not hasattr(samebits, name)] == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem) for path in MIGRATION],
)
def test_before_and_after_train(tmp_path: Path, path: Path) -> None:
    ranks = "2" if path.stem == "after" else "1"  # the others on two: test_torchrun_scripts.py
    run(tmp_path, path, "-n", ranks, "--threads", "1")
    (saved,) = tmp_path.glob("digits.*")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    if saved.suffix == ".safetensors":
        samebits.load_weights(model, saved)
    else:
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state.get("model", state))
    assert correct(model) > 0.85


def correct(model: torch.nn.Module) -> float:
    """The fraction of all digits that the model gets right."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    named = model(torch.tensor(digits.data, dtype=torch.float32) / 16).argmax(1)
    return (named == torch.tensor(digits.target)).float().mean().item()
