"""The pages: links work on a code host and on the site, generated parts are there, design pages have one form."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

import samebits
from samebits.cli.main import commands
from samebits.launcher.diagnosis.findings import FINDINGS
from samebits.protocol.events import Kind

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))  # in no package; tests/scripts has the name too

from reference import PARTS  # noqa: E402

from tests.support.promises import promise  # noqa: E402

PAGES = sorted(
    [*ROOT.glob("*.md"), ROOT / "llms.txt", ROOT / "mkdocs.yml"]
    + [page for name in ("docs", "benchmarks", "native") for page in (ROOT / name).rglob("*.md")]
)
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
OF_NO_SUBJECT = {"index.md", "code-in-an-hour.md", "what-we-tried.md"}
BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
with_mkdocs = pytest.mark.skipif(
    find_spec("mkdocs") is None or find_spec("mkdocstrings") is None, reason="mkdocs is not installed (extra docs)"
)


def build(config: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build a site strictly."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), *options],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


OURS = ("src", "tests", "benchmarks", "examples", "docs", "native", "scripts")
NOT_OURS = {"distributed_test.py"}
"""Torch's."""
SUFFIXES = {".py", ".md", ".cpp", ".hpp", ".pml"}


def test_pages_name_files_that_are_there() -> None:
    there = "\n".join(f"/{path.relative_to(ROOT)}/" for name in OURS for path in (ROOT / name).rglob("*"))
    named = re.compile(
        r"`((?:[\w-]+/)*\w+\.(?:py|cpp|hpp)|(?:src|rank|launcher|protocol|machine|native)/[\w/]*)(?:::[^`]*)?`"
    )
    dead = {
        (path.name, name)
        for path in DESIGN
        for name in {*named.findall(path.read_text())} - NOT_OURS
        if f"/{name.rstrip('/')}/" not in there
    }
    assert dead == set()


def test_code_and_notes_name_design_pages_that_are_there() -> None:
    texts = [path for name in OURS for path in (ROOT / name).rglob("*") if path.suffix in SUFFIXES]
    dead = {
        (path.name, name)
        for path in texts
        for name in re.findall(r"docs/design/([\w.-]*\w)", path.read_text())
        if not (ROOT / "docs" / "design" / name).is_file()
    }
    assert dead == set()


@promise(
    "pages",
    "Links lead somewhere, and the site loads nothing from the network; the README's commands exist; its "
    "picture shows what was measured",
    also=[
        "test_the_readme_has_110_lines_at_most_and_names_commands_that_exist",
        "test_in_the_data_of_the_demo_ranks_were_killed_and_losses_and_bits_are_those_of_the_undisturbed_run",
        "test_in_the_data_of_the_picture_plain_ddp_drifts_and_samebits_does_not",
    ],
)
@pytest.mark.thorough
@with_mkdocs
@pytest.mark.ranks
def test_the_site_builds_strictly_with_everything_public_and_nothing_from_the_network(tmp_path: Path) -> None:
    done = build(ROOT / "mkdocs.yml", "--site-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "reference" / "api.html").read_text()
    assert [name for name in samebits.__all__ if name != "__version__" and f'id="samebits.{name}"' not in api] == []
    indexed = json.loads((tmp_path / "search" / "search_index.json").read_text())["docs"]
    led = {word: one["location"] for one in indexed for word in one.get("tags", ())}
    for word in ("out of memory", "nccl", "resume", "tensorboard"):
        assert led[word].startswith("guide/"), word
    assert 'class="language-text highlight"' in (tmp_path / "notebook.html").read_text(), (
        "site.css hides its copy button"
    )
    for page in tmp_path.rglob("*.html"):
        text = page.read_text()
        assert re.findall(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"', text) == [], (
            page.name
        )
        assert "<!-- generated:" not in text, page.name


@pytest.mark.thorough
@with_mkdocs
@pytest.mark.ranks
def test_links_that_lead_nowhere_fail_the_build_and_are_named(tmp_path: Path) -> None:
    for name in ("scripts", "src", "benchmarks", "examples", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").mkdir()
    for path in (ROOT / "docs").iterdir():
        if path.name != "versions.md":
            (tmp_path / "docs" / path.name).symlink_to(path)
    dead = ("nowhere.md", "recipes.md#no-such-heading", "../src/samebits/nothing.py", "../no-folder/")
    page = (ROOT / "docs" / "versions.md").read_text() + "".join(f"\n[one]({target})\n" for target in dead)
    (tmp_path / "docs" / "versions.md").write_text(page)
    (tmp_path / "whole.yml").write_text((ROOT / "mkdocs.yml").read_text())
    (tmp_path / "mkdocs.yml").write_text("INHERIT: whole.yml\nplugins: []\n")
    done = build(tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert [target for target in dead if target not in done.stderr] == []
    assert "docs/versions.md: the link to 'nowhere.md' leads nowhere. Correct the link, or add the file." in done.stderr


def test_links_of_pages_lead_to_files_of_the_repository() -> None:
    for page in PAGES:
        text = BLOCK.sub("", page.read_text())
        targets = {target for target in re.findall(r"\]\(([^()\s]+)\)", text) if "://" not in target}
        assert [target for target in targets if not leads_somewhere(page, target)] == [], page


def leads_somewhere(page: Path, target: str) -> bool:
    """Whether a link's file is there, and in a page the heading behind the #."""
    name, _, anchor = target.partition("#")
    path = page.parent / name if name else page
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))


@cache
def anchors(page: Path) -> set[str]:
    """The names that code hosts, and the site, give to a page's headings."""
    text = BLOCK.sub("", page.read_text())
    headings = [
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_lines_of_code_are_at_most_92_characters_long() -> None:
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())["cells"]
    shown = {page: "".join(f"{block[0]}\n" for block in BLOCK.finditer(page.read_text())) for page in PAGES}
    shown[ROOT / "examples" / "notebook.ipynb"] = "".join(
        "".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code"
    )
    assert sum(map(len, shown.values())) > 50_000
    wide = [
        f"{page.relative_to(ROOT)}: {line}"
        for page, text in shown.items()
        for line in text.splitlines()
        if len(line) > 92
    ]
    assert wide == [], "a page of the site shows 92 characters beside each other: break these lines"


def test_examples_and_pictures_that_pages_name_exist() -> None:
    for page in PAGES:
        named = set(re.findall(r"\b(?:examples|docs)/[\w/.-]+\.(?:py|md|png)", page.read_text()))
        assert [name for name in named if not (ROOT / name).exists()] == [], page


@pytest.mark.parametrize("page", DESIGN, ids=lambda page: page.stem)
def test_design_pages_have_one_form_and_are_in_the_navigation(page: Path) -> None:
    text = page.read_text()
    title, _, rest = text.partition("\n\n")
    assert re.fullmatch(r"# [^\n]*[^.]", title)
    assert len(text.splitlines()) <= 150
    assert f"design/{page.name}\n" in (ROOT / "mkdocs.yml").read_text()
    if page.name not in OF_NO_SUBJECT:
        assert f"({page.name})" in (ROOT / "docs/design/index.md").read_text()
        assert re.match(r"\*\*Decided\*\* \(\d{4}-\d\d-\d\d[^)]*\): ", rest)
        assert all(part in rest for part in ("\n**Files:** ", "\n## Tried instead\n", "\n## What it costs\n"))


def test_the_design_is_13_pages() -> None:
    assert len(DESIGN) == 13, "a decision that is hard to reverse goes into the page of its subject"


def test_the_readme_has_110_lines_at_most_and_names_commands_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    lines = re.findall(r"(?:^\$ |`)samebits ([a-z][^`\n]*)", text, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        command, *words = line.partition(".py ")[0].split()  # what follows a script is its own
        found = commands.get_command(click.Context(commands), command)
        assert found is not None, line
        known = {name for option in found.params for name in option.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


def test_generated_parts_say_what_the_code_says() -> None:
    assert PARTS.keys() == {
        name for page in PAGES for name in re.findall(r"<!-- generated: (.+) -->", page.read_text())
    }
    shown = {name: make() for name, make in PARTS.items()}
    assert [
        name for name in ("run", "verify", "bench", "doctor") if f"## samebits {name}" not in shown["command line"]
    ] == []
    assert "`-n N|auto`" in shown["command line"].replace("\\|", "|")
    assert "`metrics.jsonl`" in shown["run folder"]
    assert "`logs/rank-00000.log`" in shown["run folder"]
    assert [kind for kind in Kind if f"| `{kind}` |" not in shown["events"]] == []
    assert "130 for Ctrl-C" in shown["exit codes"]
    errors = [name for name in samebits.__all__ if name.endswith("Error") and getattr(samebits, name).__name__ == name]
    assert [name for name in errors if f"`samebits.{name}`" not in shown["errors"]] == []


def test_each_finding_has_a_page_that_is_in_the_index_and_in_the_navigation() -> None:
    folder, navigation = ROOT / "docs" / "findings", (ROOT / "mkdocs.yml").read_text()
    assert {path.name for path in folder.glob("*.md")} == {"index.md", *(f"{name}.md" for name in FINDINGS)}
    rows = [f"| [{name}]({name}.md) | {finding.title} |" for name, finding in FINDINGS.items()]
    assert "\n".join(rows) in (folder / "index.md").read_text()
    assert [name for name in FINDINGS if f"- findings/{name}.md\n" not in navigation] == []
