# SPDX-License-Identifier: Apache-2.0
"""A response as plugins see it."""

from dataclasses import dataclass, field

import msgspec

from epp.framework.endpoint import Endpoint
from epp.framework.request import Headers


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one request."""

    prompt_tokens: int
    """Of the prompt, cached ones included."""
    completion_tokens: int
    """Generated; 0 where none are, as for embeddings."""
    cached_tokens: int
    """Of the prompt, those that came from a cache."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is known of a response so far."""

    served: Endpoint
    """The endpoint that serves it, as far as is known."""
    served_address: str = ""
    """`ip:port` that the gateway says it used; empty where it does not say."""
    status: int = 0
    """HTTP status."""
    headers: Headers = field(default_factory=Headers)
    usage: Usage | None = None
    """Tokens as the endpoint counted them, once the body is over."""
    events: int = 0
    """Events of an event stream so far; 0 where they are not counted."""
