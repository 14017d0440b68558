# SPDX-License-Identifier: Apache-2.0
"""Text of clients in errors, logs and headers: short, and without control characters."""


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
