# SPDX-License-Identifier: Apache-2.0
"""API keys: their digests, header values with keys, and files of keys.

No message shows content of a file: if keys and tenants are swapped, the name of a tenant is a key.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from epp.framework.headers import AUTHORIZATION
from epp.framework.request import DEFAULT_FLOW
from epp.runtime.followed_files import ParsedFile
from epp.runtime.plain_yaml import PlainLoader, refuse_unsafe

MAKE_DIGEST = "sha256: and what this prints: printf %s KEY | sha256sum"
"""Remedy in messages about an invalid digest."""
MOST_NAME_LENGTH = 253

_MOST_KEY_LENGTH = 4096
"""Longest key in characters; longer ones are not looked up."""
_MOST_FILE_BYTES = 4 * 1024 * 1024
"""50,000 keys; a Secret of Kubernetes has at most 1 MiB."""
_MOST_PROBLEMS = 20
_DEPTH_LIMIT = 4
_PREFIX = "sha256:"
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_BEARER = re.compile(r"bearer +", re.IGNORECASE)
_FORM = "write a mapping of keys, or of their digests, to tenants, such as sha256:<64 hexadecimal digits>: team-a"


class KeyTable(NamedTuple):
    """The content of a file of keys."""

    tenants: Mapping[bytes, str]
    """Names of tenants by digest of a key."""
    lines: Mapping[str, int]
    """The first line that names each tenant."""


def digest_of(key: str) -> bytes | None:
    """Return the digest of a key; None if the key is too long."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest() if len(key) <= _MOST_KEY_LENGTH else None


def read_digest(text: str) -> bytes | None:
    """Parse a digest `sha256:<hex>`; None for any other text."""
    found = _DIGEST.fullmatch(text)
    return None if found is None else bytes.fromhex(found[1])


def key_in(header: str, value: str) -> str:
    """Return the key in the value of a header, without `Bearer`, which `authorization` requires; empty for none."""
    value = value.strip()
    bearer = _BEARER.match(value)
    if bearer is not None:
        return value[bearer.end() :]
    return "" if header == AUTHORIZATION else value


def read_key_file(content: bytes, _path: Path) -> ParsedFile[KeyTable]:
    """Return the keys in a file of YAML or JSON; raises ValueError unless it is a mapping."""
    if len(content) > _MOST_FILE_BYTES:
        raise ValueError(f"has more than {_MOST_FILE_BYTES} bytes: leave keys out")
    tenants: dict[bytes, str] = {}
    lines: dict[str, int] = {}
    first_lines: dict[bytes, int] = {}
    disputed: set[bytes] = set()
    problems: list[str] = []
    for line, key, name in _entries(content.decode("utf-8-sig")):
        digest = read_digest(key) if key.startswith(_PREFIX) else digest_of(key)
        if problem := _fault(key, name, digest):
            problems.append(f"line {line}: {problem}")
        elif digest is not None and tenants.setdefault(digest, name) != name:
            disputed.add(digest)
            problems.append(f"line {line}: its key has another tenant in line {first_lines[digest]}: keep one")
        elif digest is not None:
            first_lines.setdefault(digest, line)
            lines.setdefault(name, line)
    for digest in disputed:
        del tenants[digest]
    if (more := len(problems) - _MOST_PROBLEMS) > 0:
        problems[_MOST_PROBLEMS:] = [f"and {more} more lines like these"]
    return ParsedFile(KeyTable(tenants, lines), len(tenants), tuple(problems))


def _fault(key: str, name: str, digest: bytes | None) -> str:
    """Return the problem of an entry; empty for a valid one."""
    if not key:
        return "the key is empty: write one"
    if digest is None:
        too_long = f"the key has more than {_MOST_KEY_LENGTH} characters: shorten it"
        return f"the digest is none: write {MAKE_DIGEST}" if key.startswith(_PREFIX) else too_long
    if not name:
        return "it names no tenant: write the name of one after the key and a colon"
    if name == DEFAULT_FLOW:
        return f"its tenant is {name}, the fairness id of requests without one: choose another name"
    if len(name) > MOST_NAME_LENGTH:
        return f"the name of its tenant has more than {MOST_NAME_LENGTH} characters: shorten it"
    return ""


def _entries(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, key and tenant of each entry as text: a key of digits is not a number."""
    root = _root(text)
    if root is None:
        raise ValueError(f"it is empty: {_FORM}, or {{}} for no keys")
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"line {_line(root)}: there is no mapping: {_FORM}")  # noqa: TRY004  of a file
    for key, value in root.value:
        written = key.value if isinstance(key, yaml.ScalarNode) else ""
        yield _line(key), written, value.value if isinstance(value, yaml.ScalarNode) else ""


def _root(text: str) -> yaml.Node | None:
    """Return the root node of a document; raises ValueError, whose message has no part of the text."""
    try:
        refuse_unsafe(text, _DEPTH_LIMIT, keys_may_repeat=True)  # reported later, without the key
        loader = PlainLoader(text)
        try:
            root: yaml.Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"neither YAML nor JSON{place}: {_FORM}") from None
    return root


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1
