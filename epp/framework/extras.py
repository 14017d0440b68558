# SPDX-License-Identifier: Apache-2.0
"""Optional packages of this program, and the command that installs them."""

import re
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

_PROJECT = "inference-epp"


class _DirInfo(msgspec.Struct):
    editable: bool = False


class _Origin(msgspec.Struct):
    """direct_url.json of an installation (PEP 610)."""

    url: str
    dir_info: _DirInfo | None = None


def install_command(extra: str, project: str = _PROJECT) -> str:
    """Return the command that installs an extra from where this program was installed.

    That is the directory or the wheel, if it is still there. Otherwise the command names the packages of the extra:
    never this project, whose name on a package index may be somebody else's.
    """
    try:
        installed = metadata.distribution(project)
    except metadata.PackageNotFoundError:
        return f"install the extra {extra!r} of this program"
    origin = _origin(installed.read_text("direct_url.json") or "")
    if origin is not None:
        path = Path(unquote(urlsplit(origin.url).path))
        if origin.url.startswith("file:") and path.exists():
            editable = "-e " if origin.dir_info is not None and origin.dir_info.editable else ""
            return f"pip install {editable}'{path}[{extra}]'"
    marker = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    packages = [one.partition(";")[0].strip() for one in installed.requires or () if marker.search(one)]
    return " ".join(["pip install", *(f"'{one}'" for one in packages)])


def _origin(text: str) -> _Origin | None:
    try:
        return msgspec.json.decode(text, type=_Origin)
    except msgspec.DecodeError:
        return None
