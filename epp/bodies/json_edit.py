"""Gives a JSON request another model and leaves every other byte as it is."""

import msgspec

from epp.bodies.members import MemberScanner, Wanted

_MODEL = Wanted.named("model")


def with_model(body: bytes, model: str, *, partial: bool = False) -> bytes:
    """Return the body with this as the value of its top-level `model` member.

    Key order, whitespace and the spelling of numbers stay. A value that is no string is replaced too, and so is that
    of every further top-level `model`, so that readers that take the first and readers that take the last agree.

    A body that is no JSON object, or has no top-level `model`, comes back as it is; so does one that is cut short,
    unless `partial` says that it may be: then a `model` that is whole is replaced.
    """
    scanner = MemberScanner(_MODEL)
    marks = scanner.feed(body)
    usable = scanner.complete or (partial and not scanner.refused and len(marks) % 2 == 0)
    if not marks or not usable:
        return body
    value = msgspec.json.encode(model)
    edges = [0, *marks, len(body)]
    return value.join(body[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True))


def with_model_added(body: bytes, model: str) -> bytes:
    """Return a JSON object that has no `model` with one as its first member; every other byte stays."""
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip()[:1] == b"}" else b","
    return b"".join((body[:start], b'"model":', msgspec.json.encode(model), comma, body[start:]))
