# SPDX-License-Identifier: Apache-2.0
"""The `priority` member of JSON bodies, by which engines order their queues."""

from epp.routing.bodies.members import MemberScanner, Wanted

_PRIORITY = Wanted.named("priority")


def with_priority(body: bytes, priority: int) -> bytes:
    """Return a request body with this top-level `priority`; every other byte stays.

    All members of this name are replaced, so that readers of the first and readers of the last one agree. A body that
    is no JSON object, or is incomplete, is returned unchanged.
    """
    scanner = MemberScanner(_PRIORITY)
    marks = scanner.feed(body)
    if not scanner.complete:
        return body
    value = b"%d" % priority
    if marks:
        bounds = [0, *marks, len(body)]
        return value.join(body[start:end] for start, end in zip(bounds[::2], bounds[1::2], strict=True))
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip()[:1] == b"}" else b","
    return b"".join((body[:start], b'"priority":', value, comma, body[start:]))
