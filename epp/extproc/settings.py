# SPDX-License-Identifier: Apache-2.0
"""Limits on what gateways use, and the flags that set them."""

import math
from dataclasses import dataclass
from typing import Final

from epp.runtime.flags import COUNT, DURATION, SIZE, flag

_MIB: Final = 1024 * 1024
DEFAULT_MAX_BODY_BYTES: Final = 32 * _MIB
DEFAULT_GATHERED_BYTES: Final = 256 * _MIB
_LARGEST_BODIES: Final = 2
"""Number of bodies of the largest size that must fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Limits on the resources of all gateways together; raises ValueError for limits that contradict."""

    max_body_bytes: int = flag(
        DEFAULT_MAX_BODY_BYTES, "Largest request body accepted.", SIZE, name="--max-request-body"
    )
    max_gathered_bytes: int | None = flag(
        None,
        "Bytes of all incoming bodies and of all replies that gateways have not read. Above this limit, requests "
        "are refused with 503, slow ones first. By default 256Mi, or twice --max-request-body if that is more.",
        SIZE,
    )
    max_pending_streams: int = flag(
        16_384, "Most incomplete requests at a time; further ones are refused with 503.", COUNT
    )
    max_streams: int = flag(65_536, "Most requests at a time, until their responses end; further ones get 503.", COUNT)
    max_streams_per_connection: int = flag(
        16_384, "Most requests at a time on one connection of a gateway, which then opens another connection.", COUNT
    )
    max_connections: int = flag(
        4096,
        "Connections of gateways, half of the file descriptors at most. A further one replaces one "
        "without requests, first one that never had any, or is closed. Not with --transport grpcio.",
        COUNT,
    )
    body_timeout_seconds: float = flag(
        60.0,
        "Longest pause within a request body; then the request is refused with 408. 0 for no limit. The time in "
        "which a gateway buffers a body is not counted.",
        DURATION,
        name="--body-timeout",
    )

    def __post_init__(self) -> None:
        least = self.least_gathered_bytes
        if self.max_gathered_bytes is not None and self.max_gathered_bytes < least:
            raise ValueError(
                f"--max-gathered-bytes {self.max_gathered_bytes} is too little for bodies of --max-request-body "
                f"{self.max_body_bytes}: give it {least} or more, or lower --max-request-body"
            )

    @property
    def least_gathered_bytes(self) -> int:
        """The least limit of gathered bytes under which a body of the largest size always fits."""
        return _LARGEST_BODIES * self.max_body_bytes

    @property
    def gathered_bytes(self) -> int:
        """The limit of gathered bytes."""
        given = self.max_gathered_bytes
        return max(DEFAULT_GATHERED_BYTES, self.least_gathered_bytes) if given is None else given

    @property
    def pause_seconds(self) -> float:
        """Longest time without another byte of a request that has begun; infinite for no limit."""
        return self.body_timeout_seconds or math.inf
