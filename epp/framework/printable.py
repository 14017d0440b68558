# SPDX-License-Identifier: Apache-2.0
"""Text of clients in errors, logs and headers: short, and without control characters."""

import re

_SECRET = re.compile(
    r"([?&;](?:[^=&;]*[-_.])?(?:key|apikey|api[-_]key|token|secret|password|passwd|pwd|sig|signature|auth|authorization|"
    r"credential|credentials|code|jwt)=)[^&;#]*",
    re.IGNORECASE,
)
_MOST_PATH, _MOST_READ = 128, 8192


def shown_path(path: str) -> str:
    """Return a path and query of a client as logs and records show it: 128 characters, without values of secrets.

    A parameter is taken for a secret by its name, as in `?key=` and `?access_token=`.
    """
    head = path if len(path) <= _MOST_READ else path[:_MOST_READ]
    return printable(_SECRET.sub(r"\1REDACTED", head), _MOST_PATH)


def printable(text: str, most: int = 64) -> str:
    """Return the text cut to `most` characters, with escapes for what a terminal would not print."""
    text = _cut(text, most)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return _cut(text, most)


def quoted(text: str, most: int = 64) -> str:
    """Return the text in quotes, cut and escaped in the same way."""
    return repr(_cut(text, most))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
