# SPDX-License-Identifier: Apache-2.0
"""API keys: their digests, the header values that hold them, and files of them.

No message shows anything of a file: where keys and tenants are mixed up, the name of a tenant is a key.
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
"""Remedy where a digest is wanted."""
MOST_NAME_LENGTH = 253

_MOST_KEY_LENGTH = 4096
"""Characters of a key that is looked up: what is longer is the key of no tenant."""
_MOST_FILE_BYTES = 4 * 1024 * 1024
"""50,000 keys; Kubernetes has no Secret of more than 1 MiB."""
_MOST_PROBLEMS = 20
_DEPTH_LIMIT = 4
_PREFIX = "sha256:"
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_BEARER = re.compile(r"bearer +", re.IGNORECASE)
_FORM = "write a mapping of keys, or of their digests, to tenants, such as sha256:<64 hexadecimal digits>: team-a"


class KeyTable(NamedTuple):
    """What a file of keys says."""

    tenants: Mapping[bytes, str]
    """Names of tenants by the digest of a key."""
    lines: Mapping[str, int]
    """The first line that names each tenant."""


def digest_of(key: str) -> bytes | None:
    """Return the digest by which a key is looked up; None for one that is too long to be any."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest() if len(key) <= _MOST_KEY_LENGTH else None


def read_digest(text: str) -> bytes | None:
    """Return the digest that is written as `sha256:<hex>`; None for any other text."""
    found = _DIGEST.fullmatch(text)
    return None if found is None else bytes.fromhex(found[1])


def key_in(header: str, value: str) -> str:
    """Return the key in the value of a header, which `Bearer` may precede, and in `authorization` has to; or empty."""
    value = value.strip()
    bearer = _BEARER.match(value)
    if bearer is not None:
        return value[bearer.end() :]
    return "" if header == AUTHORIZATION else value


def read_key_file(content: bytes, _path: Path) -> ParsedFile[KeyTable]:
    """Return the keys in a file of YAML or JSON; raises ValueError for a file that is no mapping."""
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
            problems.append(f"line {line}: in line {first_lines[digest]} its key is of another tenant: keep one")
        elif digest is not None:
            first_lines.setdefault(digest, line)
            lines.setdefault(name, line)
    for digest in disputed:
        del tenants[digest]
    if (more := len(problems) - _MOST_PROBLEMS) > 0:
        problems[_MOST_PROBLEMS:] = [f"and {more} more lines like these"]
    return ParsedFile(KeyTable(tenants, lines), len(tenants), tuple(problems))


def _fault(key: str, name: str, digest: bytes | None) -> str:
    """Return what is wrong with an entry; empty for nothing."""
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
    """Yield line, key and tenant of each entry, as they are written: a key of digits is no number."""
    root = _root(text)
    if root is None:
        raise ValueError(f"it is empty: {_FORM}, or {{}} for no keys")
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"line {_line(root)}: there is no mapping: {_FORM}")  # noqa: TRY004  of a file
    for key, value in root.value:
        written = key.value if isinstance(key, yaml.ScalarNode) else ""
        yield _line(key), written, value.value if isinstance(value, yaml.ScalarNode) else ""


def _root(text: str) -> yaml.Node | None:
    """Return the node of a document; raises ValueError without a word of the text, which may be a part of a key."""
    try:
        refuse_unsafe(text, _DEPTH_LIMIT, keys_may_repeat=True)  # said later, without the key
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
