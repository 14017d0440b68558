# SPDX-License-Identifier: Apache-2.0
"""The `model` member of long request bodies, replaced in turns of the event loop: a body becomes its parts."""

from itertools import chain

import msgspec

from epp.framework.json_scan import SLICE_BYTES, members
from epp.framework.long_json import RUN_BYTES, stripped
from epp.framework.steps import Steps, Text
from epp.routing.bodies.model_member import model_spans_of, too_many_models
from epp.routing.bodies.model_values import MOST_MODELS
from epp.routing.bodies.partial import completed_in_turns

Parts = list[Text]
"""Of a body, in order."""
_NAMES = frozenset({"model"})


def long_with_model(body: bytes, model: str, *, partial: bool = False) -> Steps[Parts]:
    """Return what `with_model` does: of a body that stays as it is, the body itself is the only part."""
    spans = yield from _spans(body, partial=partial)
    if not spans or spans[-1][1] > len(body):
        return [body]
    view, value = memoryview(body), msgspec.json.encode(model)
    marks = [0, *chain.from_iterable(spans), len(body)]
    parts: Parts = []
    for start, end in zip(marks[::2], marks[1::2], strict=True):
        parts += (view[start:end], value)
    return parts[:-1]


def long_with_model_added(body: bytes, model: str) -> Steps[Parts]:
    """Return what `with_model_added` does."""
    view = memoryview(body)
    start = (yield from _find(body, b"{")) + 1
    first, _ = yield from stripped(view, start, len(body))
    comma = b"" if body[first : first + 1] == b"}" else b","
    return [view[:start], b'"model":', msgspec.json.encode(model), comma, view[start:]]


def _find(body: bytes, wanted: bytes) -> Steps[int]:
    """Return where a byte is; raises ValueError where it is not."""
    for start in range(0, len(body), RUN_BYTES):
        found = body.find(wanted, start, start + RUN_BYTES)
        if found >= 0:
            return found
        yield None
    return body.index(wanted, len(body))


def _spans(body: bytes, *, partial: bool) -> Steps[list[tuple[int, int]]]:
    """Return start and end of each value; raises MalformedBodyError for more than two."""
    found: list[tuple[int, int]] = []

    def note(_name: str, start: int, end: int) -> None:
        if len(found) <= MOST_MODELS:
            found.append((start, end))

    text = (yield from completed_in_turns(body)) if partial else body
    try:
        yield from members(text, _NAMES, note)
    except (ValueError, RecursionError):  # not JSON, no object, or nested too deep
        return (yield from model_spans_of(_slices(body), partial=partial))
    if len(found) > MOST_MODELS:
        raise too_many_models()
    spans: list[tuple[int, int]] = []
    for start, end in found:
        spans.append((yield from stripped(text, start, end)))
    return spans


def _slices(body: bytes) -> list[memoryview]:
    view = memoryview(body)
    return [view[start : start + SLICE_BYTES] for start in range(0, len(body), SLICE_BYTES)]
