"""`--local_rank` is passed to scripts that declare it, in their spelling, and to no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.launcher.script_source import declared_option, local_rank_option, source_of

UNDERSCORE = "parser.add_argument('--local_rank', default=-1, type=int)"
HYPHEN = 'group.add_argument("-l", "--local-rank", type=int)'


@pytest.mark.parametrize(
    ("source", "option"),
    [
        (UNDERSCORE, "--local_rank"),
        (HYPHEN, "--local-rank"),
        ('parser.add_argument("--local-rank", "--local_rank")', "--local-rank"),
        ("# parser.add_argument('--local_rank')", ""),
        ("print('--local_rank')", ""),
        ("parser.add_argument('--local_rank_offset')", ""),
        ("this is not Python: --local_rank", ""),
        ("add = parser.add_argument(name)", ""),
        ("train = commands.add_parser('train'); train.add_argument('--local_rank')", ""),
        ("train = commands.add_parser('train'); parser.add_argument('--local_rank')", "--local_rank"),
    ],
)
def test_the_spelling_that_the_script_declares_is_found(source: str, option: str) -> None:
    assert declared_option(source) == option


@pytest.mark.parametrize(
    ("source", "args", "use_env", "option"),
    [
        (UNDERSCORE, (), None, "--local_rank"),
        (UNDERSCORE, (), True, ""),
        (UNDERSCORE, ("--local_rank=5",), None, ""),
        (UNDERSCORE, ("--local-rank", "5"), False, ""),
        ("pass", (), None, ""),
        ("pass", (), False, "--local-rank"),
        (HYPHEN, (), False, "--local-rank"),
        (None, (), None, ""),
    ],
)
def test_it_is_passed_when_it_is_due(
    source: str | None, args: tuple[str, ...], use_env: bool | None, option: str
) -> None:
    assert local_rank_option(source, args, use_env) == option


def test_the_source_of_modules_and_packages_is_found_without_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package" / "inner").mkdir(parents=True)
    (tmp_path / "package" / "inner" / "__main__.py").write_text("of the package")
    (tmp_path / "package" / "train.py").write_text("of the module")
    (tmp_path / "alone.py").write_text("alone")
    assert source_of("package.inner", True) == "of the package"
    assert source_of("package.train", True) == "of the module"
    assert source_of("alone", True) == source_of("alone.py", False) == "alone"
    assert "def loads" in (source_of("json.decoder", True) or "") or source_of("json.decoder", True)
    assert source_of("no.such", True) is None
    assert source_of("none.py", False) is None
