# SPDX-License-Identifier: Apache-2.0
"""Bytes as a body: parsing and changes do not depend on how it is split, and only its model changes."""

import json
from collections.abc import Iterator
from typing import Any

from epp.framework.errors import RequestError
from epp.routing.bodies.model_member import ModelRestorer, completed, with_model
from epp.routing.bodies.usage import UsageReader
from perf.fuzz.targets import FuzzTarget

_NAME = "the-name"
_MOST_PIECES = 64


class Target(FuzzTarget):
    """Bodies of requests and responses."""

    def __call__(self, content: bytes) -> None:
        flags, step = (*content[:2], 0, 0)[:2]
        body, event_stream = content[2:], bool(flags & 1)
        pieces = list(_cut(body, step))
        whole = _restored([body], event_stream=event_stream)
        assert _restored(pieces, event_stream=event_stream) == whole, "restored differently if it is split"
        assert _usage(pieces, event_stream=event_stream) == _usage([body], event_stream=event_stream), "other usage"
        if not event_stream:
            _check_model(body, whole, _NAME)
            self._change(body)

    @staticmethod
    def _change(body: bytes) -> None:
        completed(body)
        for partial in (False, True):
            try:
                changed = with_model(body, _NAME, partial=partial)
            except RequestError:
                continue
            _check_model(body, changed, _NAME)


def _cut(body: bytes, step: int) -> Iterator[bytes]:
    size = max(1 + step % 16, len(body) // _MOST_PIECES)
    yield from (body[at : at + size] for at in range(0, len(body), size))
    if not body:
        yield body


def _restored(pieces: list[bytes], *, event_stream: bool) -> bytes:
    restorer = ModelRestorer(_NAME, event_stream=event_stream)
    last = len(pieces) - 1
    return b"".join(restorer.feed(piece, last=number == last) for number, piece in enumerate(pieces))


def _usage(pieces: list[bytes], *, event_stream: bool) -> object:
    reader = UsageReader(event_stream=event_stream)
    for number, piece in enumerate(pieces):
        reader.feed(piece, last=number == len(pieces) - 1)
    return reader.usage


def _check_model(before: bytes, after: bytes, name: str) -> None:
    """Check with an independent parser that only the model of a JSON object changes."""
    read = _members(before)
    if read is None:
        return
    found = _members(after)
    assert found is not None, "no JSON any more"
    assert [key for key, _ in found] == [key for key, _ in read], "other members"
    for (key, was), (_, now) in zip(read, found, strict=True):
        assert now == was or (key == "model" and now == name) or _has_model(was), f"{key} has changed"


def _has_model(value: Any) -> bool:
    """Whether there is a nested model, which may change in some APIs."""
    return '"model"' in json.dumps(value)


def _members(body: bytes) -> list[tuple[str, Any]] | None:
    try:
        pairs = json.loads(body.decode(), object_pairs_hook=list, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        return None
    return pairs if body.lstrip()[:1] == b"{" and isinstance(pairs, list) else None
