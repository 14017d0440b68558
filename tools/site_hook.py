# SPDX-License-Identifier: Apache-2.0
"""MkDocs hook: adds README.md as the front page, and the files outside docs/ that pages link to, below repository/.

Links in the documents are those of a code host; the hook rewrites them for the site.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

REPOSITORY = Path(__file__).parents[1]
FRONT_PAGE = "README.md"
OUTSIDE = "repository"
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
_PICTURE = re.compile(
    r'<picture>.*?srcset="(?P<dark>[^"]+)".*?alt="(?P<text>[^"]+)" src="(?P<light>[^"]+)".*?</picture>', re.DOTALL
)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the front page, and each file outside docs/ that a page of the site links to."""
    pages = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = {*pages, *(f"docs/{file.src_uri}" for file in files)}
    left = [*pages, FRONT_PAGE]
    while left:
        source = left.pop()
        content = _content(source)
        if source not in seen:
            seen.add(source)
            files.append(File.generated(config, _uri(source), content=content))
        if source.endswith(".md"):
            left += [target for target in _targets(source, content.decode()) if target not in seen]
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with links and pictures as the site has them."""
    source = _source(page.file.src_uri)
    text = _PICTURE.sub(r"![\g<text>](\g<light>#only-light)\n![\g<text>](\g<dark>#only-dark)", markdown)
    here = posixpath.dirname(page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        target = _resolve(source, link[1])
        return link[1] if target is None else posixpath.relpath(_uri(target), here or ".")

    parts = re.split(f"({_FENCED.pattern})", text, flags=_FENCED.flags)
    parts[::2] = [_TABLE_ROW.sub(_plain_bars, _LINK.sub(moved, part)) for part in parts[::2]]
    return "".join(parts)


def _plain_bars(row: re.Match[str]) -> str:
    """Return a row of a table whose code has bars without backslash: Python-Markdown shows the backslash."""
    return re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0])


def _targets(source: str, text: str) -> Iterator[str]:
    for link in _LINK.findall(_FENCED.sub("", text)):
        target = _resolve(source, link)
        if target is not None:
            yield target


def _resolve(source: str, link: str) -> str | None:
    """Return the path in the repository that a link leads to, README.md for a folder; None if there is no such path."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path.startswith("..") or not (REPOSITORY / path).exists():
        return None
    return f"{path}/README.md" if (REPOSITORY / path).is_dir() else path


def _content(source: str) -> bytes:
    """Return a file of the repository; for the README.md of a folder without one, a list of the folder's files."""
    path = REPOSITORY / source
    if path.exists():
        return path.read_bytes()
    names = sorted(each.name for each in path.parent.iterdir() if each.is_file())
    listed = "".join(f"- [{name}]({name})\n" for name in names)
    return f"# {path.parent.name}\n\n{listed}".encode()


def _uri(source: str) -> str:
    if source == FRONT_PAGE:
        return "index.md"
    return source.removeprefix("docs/") if source.startswith("docs/") else f"{OUTSIDE}/{source}"


def _source(uri: str) -> str:
    if uri == "index.md":
        return FRONT_PAGE
    return uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else f"docs/{uri}"
