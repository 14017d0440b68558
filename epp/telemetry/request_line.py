# SPDX-License-Identifier: Apache-2.0
"""The log line of a request for a terminal: at most two lines of 120 columns."""

from collections.abc import MutableMapping
from typing import Any

from epp.framework.messages import printable

REQUEST_EVENT = "request"
_MOST_TEXT = 198
"""Two lines, without the time and the level."""
_MOST_MODEL = 20
_MOST_ID = 36
_MOST_NAME = 20


def request_as_text(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace the fields of a request by one text; structlog calls it for every event."""
    if event["event"] != REQUEST_EVENT:
        return event
    rest = {name: event[name] for name in ("timestamp", "level") if name in event}
    return {**rest, "event": _text(event)}


def _text(event: MutableMapping[str, Any]) -> str:
    outcome = event["outcome"]
    words = [str(event["status"] or "-")]
    if outcome == "refused":
        words.append(f"refused, {event['reason']}")
    elif outcome == "client-disconnect":  # a model server may have been lost instead, or the gateway shows no response
        words.append("client left" if event["status"] or not event["endpoint"] else "closed without a response")
    elif outcome == "error":
        words.append("failed")
    words += [printable(event["endpoint"] or "", _MOST_NAME), _model(event)]
    words.append(f"{event['duration_seconds']:.3f}s")
    if event["queue_seconds"] is not None:
        words.append(f"queued {event['queue_seconds']:.3f}s")
    if event["ttft_seconds"] is not None:
        words.append(f"ttft {event['ttft_seconds']:.3f}s")
    if event["prompt_tokens"] is not None:
        words.append(f"{event['prompt_tokens']}+{event['completion_tokens']} tokens")
    said = " ".join(word for word in words if word)
    request_id = printable(event["request_id"], _MOST_ID)
    room = _MOST_TEXT - len(said) - len(request_id) - len(" |  | ")
    return f"{said} | {printable(event['why'], room)} | {request_id}"


def _model(event: MutableMapping[str, Any]) -> str:
    """Return the model that the client asked for, and the one that the endpoint was asked for, if it is another."""
    asked = printable(event["model"], _MOST_MODEL)
    return asked if event["target_model"] is None else f"{asked}->{printable(event['target_model'], _MOST_MODEL)}"
