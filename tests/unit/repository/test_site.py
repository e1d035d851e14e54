"""The site: languages, widths, what tables may break."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TRANSLATED = ("quickstart", "which-way", "migration", "from-the-notes")
pytestmark = pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None, reason="mkdocs is not installed (extra docs)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site without the pages that come from the code, which take most of the time."""
    folder = tmp_path_factory.mktemp("site")
    config = folder / "mkdocs.yml"
    hooks = [str(ROOT / "scripts" / name) for name in ("site_pages.py", "site_languages.py")]
    own = {"INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": str(ROOT / "docs"), "hooks": hooks, "plugins": ["search"]}
    config.write_text(json.dumps(own | {"watch": []}))
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--config-file",
        str(config),
        "--site-dir",
        str(folder / "site"),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "site"


def menu(page: str) -> list[str]:
    """The entries of the bar at the top."""
    (bar,) = re.findall(r'<nav class="md-tabs".*?</nav>', page, re.DOTALL)
    return [re.sub(r"<.*?>", "", link).strip() for link in re.findall(r"<a .*?</a>", bar, re.DOTALL)]


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.parametrize(("language", "first"), [("zh", "入门"), ("ko", "시작하기")])
def test_a_translated_page_says_its_language_and_has_its_menu(site: Path, language: str, first: str) -> None:
    assert '<html lang="en"' in (site / "index.html").read_text()
    assert menu((site / "index.html").read_text()) == ["Start", "Guide", "Trouble", "Reference", "Design"]
    for name in TRANSLATED:
        text = (site / f"{name}.{language}.html").read_text()
        assert f'<html lang="{language}"' in text
        assert menu(text) == [first, "Guide", "Trouble", "Reference", "Design"]
        neighbours = re.findall(r'<link rel="(?:prev|next)" href="([^"]*)"', text)
        assert neighbours
        assert [page for page in neighbours if not page.endswith(f".{language}.html")] == []


@pytest.mark.thorough
@pytest.mark.ranks
def test_the_switch_leads_to_the_same_page_and_only_translations_are_called_alternates(site: Path) -> None:
    page = (site / "migration.html").read_text()
    assert re.findall(r'<link rel="alternate" href="([^"]*)" hreflang="(\w+)"', page) == [
        ("migration.html", "en"),
        ("migration.zh.html", "zh"),
        ("migration.ko.html", "ko"),
    ]
    page = (site / "guide" / "loop.html").read_text()
    assert 'rel="alternate"' not in page
    assert re.findall(r'<a href="([^"]*)" hreflang="\w+" class="md-select__link"', page) == [
        "loop.html",
        "../quickstart.zh.html",
        "../quickstart.ko.html",
    ]


@pytest.mark.thorough
@pytest.mark.ranks
def test_translations_stand_behind_english_pages_in_the_search_and_mark_links_to_them(site: Path) -> None:
    indexed = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    boost = {one["location"]: one.get("boost", 1) for one in indexed}
    assert boost["migration.ko.html"] < 0.1 * boost["migration.html"]
    page = (site / "which-way.zh.html").read_text()
    assert re.search(r'<a href="guide/[^"]*" hreflang="en">', page)
    assert not re.search(r'<a href="[^"]*\.zh\.html[^"]*" hreflang="en">', page)


@pytest.mark.thorough
@pytest.mark.ranks
def test_tables_break_long_code_only_and_never_inside_an_option(site: Path) -> None:
    page = (site / "from-the-notes.html").read_text()
    cells = [cell for cell in re.findall(r"<td\b.*?</td>", page, re.DOTALL) if "<code" in cell]
    codes = re.findall(r"<code( class=\"long\")?>(.*?)</code>", "".join(cells))
    assert len(codes) > 20
    assert [code for is_long, code in codes if bool(is_long) != (len(re.sub(r"<.*?>", "", code)) >= 32)] == []
    loose = [code for is_long, code in codes if is_long and re.search(r"(?<!nobr\">)--\w", code)]
    assert loose == []


def test_text_is_at_most_44_rem_wide() -> None:
    rules = re.sub(r"/\*.*?\*/", "", (ROOT / "docs" / "site.css").read_text(), flags=re.DOTALL)
    widths = {name.strip(): float(width) for name, width in re.findall(r"([^{}]+){ max-width: ([\d.]+)rem", rules)}
    assert [name for name, width in widths.items() if width > 44] == [".md-grid"]
    assert [name for name in widths if name.startswith(".md-typeset > :is(p, ul, ol,")] != []
