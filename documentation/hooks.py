"""MkDocs hooks that build the site: they add pages from outside docs/, generate the reference, and convert links.

Every document is written for the repository, with links for a code host. These hooks convert each link to a page of the
site into a link inside the site, and each link to another file into plain text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "documentation"))
import reference  # noqa: E402

# Files of the repository outside docs/ that are pages of the site, keyed by their address on the site.
ELSEWHERE = {
    "readme.md": "README.md",
    "zh/readme.md": "README.zh-CN.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "examples/index.md": "examples/README.md",
    **{
        f"examples/{one.parent.name}.md": f"examples/{one.parent.name}/README.md"
        for one in ROOT.glob("examples/*/README.md")
    },
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s#]*)(#[^()\s]*)?\)")
_MADE = re.compile(r"<!--.*?-->\n?")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are outside docs/."""
    for address, path in ELSEWHERE.items():
        files.append(File.generated(config, address, content=(ROOT / path).read_text(encoding="utf-8")))
    for address, text in reference.pages().items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page whose links are converted to links inside the site."""
    address = page.file.src_uri
    folder = posixpath.dirname(ELSEWHERE.get(address, f"docs/{address}"))
    pages = {path: site for site, path in ELSEWHERE.items()}

    def inside(found: re.Match[str]) -> str:
        image, text, target, anchor = found.groups()
        if not target or "://" in target:
            return found.group()
        path = posixpath.normpath(posixpath.join(folder, target))
        site = pages.get(path) or pages.get(f"{path}/README.md") or path.removeprefix("docs/")
        if files.get_file_from_path(site) is None:
            return text
        return f"{image}[{text}]({posixpath.relpath(site, posixpath.dirname(address) or '.')}{anchor or ''})"

    return _MADE.sub("", _LINK.sub(inside, markdown))
