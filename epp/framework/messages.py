# SPDX-License-Identifier: Apache-2.0
"""Parts of messages: text of clients, errors of plugins, and install commands."""

import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path, PurePath
from traceback import walk_tb
from urllib.parse import unquote, urlsplit

import msgspec

from epp.framework.arrays import ResultError

_SECRET = re.compile(
    r"([?&;](?:[^=&;]*[-_.])?(?:key|apikey|api[-_]key|token|secret|password|passwd|pwd|sig|signature|auth|authorization|"
    r"credential|credentials|code|jwt)=)[^&;#]*",
    re.IGNORECASE,
)
_CREDENTIALS = (
    re.compile(r"""(?<![\w+.-])([a-zA-Z][\w+.-]*://)[^\s/?#"']*@"""),
    re.compile(r"""(?<![^\s"'[{,])()[^\s@:/"'[{,]*:[^\s/"'}\],]+@"""),
)
"""Credentials in a URL, and in an address without a scheme, such as `user:password@host`."""
_MOST_PATH, _MOST_READ = 128, 8192
_MOST_QUOTED = 64
_FRAMEWORK_MODULES = ("epp.framework.", "epp.routing.scheduling.", "epp.routing.director.", "epp.config.", "importlib.")
"""Modules that call plugins or that plugins call; a line in them does not locate the mistake of a plugin."""
_PROJECT = "inference-epp"


def shown_path(path: str) -> str:
    """Return a path and query for logs and records: at most 128 characters, without secrets.

    Parameters are recognised as secrets by name, as in `?key=` and `?access_token=`.
    """
    head = path if len(path) <= _MOST_READ else path[:_MOST_READ]
    return printable(_SECRET.sub(r"\1REDACTED", head), _MOST_PATH)


def without_credentials(text: str) -> str:
    """Return the text with the users and passwords of URLs replaced."""
    for credentials in _CREDENTIALS if "@" in text else ():
        text = credentials.sub(r"\1REDACTED@", text)
    return text


def printable(text: str, most: int = _MOST_QUOTED) -> str:
    """Return the text cut to `most` characters, with escapes for unprintable characters."""
    text = _cut(text, most)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return _cut(text, most)


def quoted(text: str) -> str:
    """Return the text in quotes, cut to 64 characters and escaped."""
    return repr(_cut(text, _MOST_QUOTED))


def listed(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first `most` names, and the number of the others."""
    rest = len(names) - most
    end = ("" if separator == ", " else separator.rstrip()) + f" and {rest} more"
    return separator.join(names[:most]) + (end if rest > 0 else "")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def described(error: BaseException, owner: type | None = None) -> str:
    """Return `KeyError: 'x' (my_plugins/zones.py:25)`, with the last line in the package of `owner`, or in any package.

    Of a ResultError, which reports a wrong return value, return only the message: the plugin did not raise it.
    """
    if isinstance(error, ResultError):
        return str(error)
    place = _place(error, owner)
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}{f' ({place})' if place else ''}"


def _place(error: BaseException, owner: type | None) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return ""  # its message has the place
    calls = [(str(frame.f_globals.get("__name__", "")), frame, line) for frame, line in walk_tb(error.__traceback__)]
    frames = [call for call in calls if not f"{call[0]}.".startswith(_FRAMEWORK_MODULES)]
    package = "" if owner is None else owner.__module__.partition(".")[0]
    own = [entry for entry in frames if entry[0].partition(".")[0] == package]
    for name, frame, line in (own or frames)[-1:]:
        path = PurePath(frame.f_code.co_filename)
        depth = name.count(".") + (2 if path.stem == "__init__" else 1)
        return f"{'/'.join(path.parts[-depth:])}:{line}"
    return ""


class _Origin(msgspec.Struct):
    """File direct_url.json of an installation (PEP 610)."""

    url: str
    dir_info: dict[str, object] | None = None


def install_command(extra: str, project: str = _PROJECT) -> str:
    """Return the command that installs an extra of this program.

    The command uses the directory or the wheel that the program was installed from, if it still exists. Otherwise it
    names the packages of the extra, never this project: its name on a package index may belong to another project.
    """
    try:
        installed = metadata.distribution(project)
    except metadata.PackageNotFoundError:
        return f"install the extra {extra!r} of this program"
    origin = _origin(installed.read_text("direct_url.json") or "")
    if origin is not None:
        path = Path(unquote(urlsplit(origin.url).path))
        if origin.url.startswith("file:") and path.exists():
            editable = "-e " if (origin.dir_info or {}).get("editable") is True else ""
            return f"pip install {editable}'{path}[{extra}]'"
    marker = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    packages = [one.partition(";")[0].strip() for one in installed.requires or () if marker.search(one)]
    return " ".join(["pip install", *(f"'{one}'" for one in packages)])


def _origin(text: str) -> _Origin | None:
    try:
        return msgspec.json.decode(text, type=_Origin)
    except msgspec.DecodeError:
        return None
