"""What the package says of itself: one description, no address that does not exist, and a page for an index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from scikit_build_core.metadata.fancy_pypi_readme import dynamic_metadata

import samebits
from samebits.cli.main import commands

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


def setting_of_the_site(name: str) -> str | None:
    found = re.search(rf'^{name}: "?(.*?)"?$', (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    return found and found[1]


def test_one_description_is_used_everywhere() -> None:
    description = PROJECT["description"]
    assert setting_of_the_site("site_description") == description
    assert (samebits.__doc__ or "").partition("\n")[0] == description
    assert f"> {description} " in (ROOT / "llms.txt").read_text()
    shown = CliRunner().invoke(commands, ["--help"]).stdout
    assert description in re.sub(r"\s+", " ", shown)


def test_addresses_of_the_repository_stand_in_one_place_or_nowhere() -> None:
    urls = PROJECT.get("urls", {})
    repository = urls.get("Repository")
    said = [*urls.values(), setting_of_the_site("repo_url"), CITATION.get("repository-code"), CITATION.get("url")]
    strangers = [url for url in said if url and not (repository and url.startswith(repository))]
    assert strangers == [], "an address of the project begins with Repository in [project.urls]; there is no other"
    code_hosts = re.compile(r"https?://(?:github|gitlab|codeberg)\.(?:com|org)/[\w.-]*samebits", re.IGNORECASE)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = {url for page in pages for url in code_hosts.findall(page.read_text())}
    assert {url for url in found if not (repository and url.startswith(repository))} == set()


def test_the_package_is_classified_by_what_is_tested() -> None:
    classifiers = PROJECT["classifiers"]
    assert sorted(set(classifiers)) == classifiers, "in order, each once"
    tested = re.search(r"Python ([\d., and]+), CPUs", (ROOT / "docs" / "versions.md").read_text())
    assert tested is not None
    versions = {found for name in classifiers for found in re.findall(r"Python :: (3\.\d+)$", name)}
    assert versions == set(re.findall(r"3\.\d+", tested[1]))
    assert PROJECT["license"] == "MIT"
    assert [name for name in classifiers if name.startswith("License")] == [], "the SPDX expression says it"


def test_on_an_index_no_link_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    made = dynamic_metadata("readme", {}, {"version": samebits.__version__, "name": "samebits"})
    assert isinstance(made, dict)
    assert made["content-type"] == "text/markdown"
    prose = re.sub(r"^```.*?^```$", "", made["text"], flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|srcset|href)=\"([^\"]*)", prose)
    assert [one for pair in targets for one in pair if one and not one.startswith(("https://", "#"))] == []
    assert "pytorch.org/get-started" in prose
    assert "how it works, how many lanes" in prose
    assert "Read on" not in prose
    assert "<!--" not in prose
    assert made["text"].startswith("# samebits")


def test_the_recipe_for_conda_says_what_the_package_says() -> None:
    text = (ROOT / "shipping/conda/recipe.yaml").read_text()
    assert text.startswith("# Never run: ")
    recipe = yaml.safe_load(text)
    needed = {name.partition(";")[0].strip().replace("torch>", "pytorch>") for name in PROJECT["dependencies"]}
    python = f"python{PROJECT['requires-python']}"
    assert {one.replace(" ", "") for one in recipe["requirements"]["run"]} == needed | {python}
    assert (recipe["context"]["version"], recipe["about"]["summary"]) == (samebits.__version__, PROJECT["description"])
