"""What turns the repository's Markdown into the site's pages; a hook of mkdocs (see mkdocs.yml).

The pages are written for a code host: links are relative, and README, changelog and benchmarks are where people look
for them. Here these files become pages of the site, links between all of them are rewritten, and the parts of the
reference that come from the code are filled in. A link to a file of the repository that is not a page becomes its
text; one that leads nowhere fails the build.
"""

from __future__ import annotations

import json
import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference import PARTS

ROOT = Path(__file__).parents[1]
log = logging.getLogger("mkdocs.hooks.site_pages")
"""Below "mkdocs", whose warnings fail a strict build."""
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks/index.md",
    "benchmarks/results/README.md": "benchmarks/results.md",
    "benchmarks/what-did-not-work.md": "benchmarks/what-did-not-work.md",
    "examples/notebook.ipynb": "notebook.md",
}
"""Pages outside docs/: where they are in the repository, and on the site."""
FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<label>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<target>[^()\s]+)\)")
PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img src="([^"]+)" alt="([^"]+)">\s*</picture>'
)
BEFORE_LIST = re.compile(r"^(?! *([-*]|\d+\.) |\s|$)(.+)\n(?=([-*]|1\.) )", re.MULTILINE)
BOOSTS = {"guide/": 8, "quickstart": 4, "findings/": 4, "design/": 0.2, "benchmarks/": 0.2, "changelog": 0.2}
"""How much a hit counts in the search, by how the page's path begins: guide pages come first."""
WORDS = {
    "guide/gpus.md": ["nccl", "cuda"],
    "guide/save.md": ["resume", "checkpoint"],
    "guide/see-a-run.md": ["tensorboard", "wandb", "report", "trace"],
    "guide/when-something-fails.md": ["out of memory", "killed", "restart"],
}
"""Words whose search leads to a page before all others, whatever the headings of others say."""
PLACE = re.compile(r"<!-- generated: (.+) -->")
CODE = re.compile(r"<pre\b.*?</pre>|<code>(?P<inline>[^<>]{32,})</code>", re.DOTALL)
OPTION = re.compile(r"(?<![^\s|\[])--[\w-]{1,30}")
NOBR = r'<span class="nobr">\g<0></span>'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside docs/."""
    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """The page as the site shows it."""
    here = page.file.src_uri
    if here == "notebook.md":
        markdown = page_of_notebook(markdown)
    page.meta["search"] = {"boost": next((boost for begin, boost in BOOSTS.items() if here.startswith(begin)), 1)}
    if here in WORDS:
        page.meta["tags"] = WORDS[here]
    if here == "index.md":
        page.meta["hide"] = ["navigation", "toc"]  # the landing page
    text = PLACE.sub(lambda found: _generated(found[1], here), markdown)
    # A page has a switch for dark colours, so the theme decides, not the browser.
    text = PICTURE.sub(r"![\3](\2#only-light)![\3](\1#only-dark)", text)
    return outside_fences(text, lambda part: separate_lists(rewrite_links(part, here)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let long code in the text break into lines, but not inside an option; short code stays in one (site.css)."""

    def breaking(code: re.Match[str]) -> str:
        return f'<code class="long">{OPTION.sub(NOBR, code["inline"])}</code>' if code["inline"] else code[0]

    return CODE.sub(breaking, html)


def page_of_notebook(text: str) -> str:
    """A notebook as it was executed: what it says, its code, and what each cell printed."""
    parts = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join(
            "".join(output.get("text") or output["data"]["text/plain"]) for output in cell.get("outputs", [])
        )
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts)


def rewrite_links(text: str, uri: str) -> str:
    """Links of a page, from the paths of the repository to those of the site.

    Args:
        text: Markdown without blocks of code.
        uri: the page's path on the site.
    """
    origin = next((path for path, site in OUTSIDE.items() if site == uri), f"docs/{uri}")

    def rewritten(link: re.Match[str]) -> str:
        path, mark, anchor = link["target"].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
        if target.startswith("..") or not (ROOT / target).exists():
            log.warning("%s: the link to %r leads nowhere. Correct the link, or add the file.", origin, link["target"])
            return link["label"]
        if target in OUTSIDE:
            site = OUTSIDE[target]
        elif target.startswith("docs/"):
            site = target.removeprefix("docs/")
        else:
            return link["label"].removeprefix("[").removesuffix("]")  # a file of the repository that is not a page
        return f"{link['label']}({posixpath.relpath(site, posixpath.dirname(uri) or '.')}{mark}{anchor})"

    return LINK.sub(rewritten, text)


def separate_lists(text: str) -> str:
    """Let a list right after a line of text begin a paragraph of its own, as on code hosts."""
    return BEFORE_LIST.sub(r"\2\n\n", text)


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """`change` applied to everything but blocks of code."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def _generated(name: str, uri: str) -> str:
    if name not in PARTS:
        raise PluginError(f"{uri}: nothing generates {name!r}. There are: {', '.join(PARTS)}.")
    return PARTS[name]()
