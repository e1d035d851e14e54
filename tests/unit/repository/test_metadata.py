"""What the package says of itself: one description, no address that does not exist, and a page for an index."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from click.testing import CliRunner

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


@pytest.fixture(scope="module")
def index_page() -> ModuleType:
    """What pip's back end calls; it lies beside it."""
    spec = importlib.util.spec_from_file_location("index_page", ROOT / "native" / "index_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


README = """# A
<!-- made by a program -->
[Start](docs/a.md) · [中文](docs/b.md) · Linux · MIT

![Two curves.](docs/p.png)

Fast ([how measured](benchmarks/README.md)), [proved](docs/c.md#d). [More](docs/e.md). See [torch](https://pytorch.org).

```console
$ x   # [kept](docs/a.md)
```

## Read on

[Start](docs/a.md) · [Guide](docs/g.md)
"""


def test_on_an_index_links_get_the_address_of_the_repository(index_page: ModuleType) -> None:
    text = index_page.page(README, "https://code.example/samebits/")
    assert "[Start](https://code.example/samebits/blob/HEAD/docs/a.md) · " in text
    assert "![Two curves.](https://code.example/samebits/raw/HEAD/docs/p.png)" in text
    assert "[proved](https://code.example/samebits/blob/HEAD/docs/c.md#d)" in text
    assert "$ x   # [kept](docs/a.md)" in text
    assert "made by" not in text


def test_without_an_address_an_index_shows_no_link_that_leads_nowhere(index_page: ModuleType) -> None:
    assert index_page.page(README, None) == (
        "# A\nLinux · MIT\n\nFast, proved. See [torch](https://pytorch.org).\n\n"
        "```console\n$ x   # [kept](docs/a.md)\n```\n"
    )


def test_the_description_of_this_package_has_absolute_links_only(index_page: ModuleType) -> None:
    made = index_page.dynamic_metadata("readme", {}, PROJECT)
    assert made["content-type"] == "text/markdown"
    prose = re.sub(r"^```.*?^```$", "", made["text"], flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|srcset|href)=\"([^\"]*)", prose)
    assert [one for pair in targets for one in pair if one and not one.startswith(("https://", "#"))] == []
    assert made["text"].startswith("# samebits")
    assert len(made["text"]) > 2000
