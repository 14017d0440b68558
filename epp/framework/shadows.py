# SPDX-License-Identifier: Apache-2.0
"""Shadow profiles: run for requests that were routed by others, to see where they would have sent them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from epp.framework.plugin import P, Plugin, Role


@dataclass(frozen=True, slots=True)
class ShadowLimits:
    """What shadows may take."""

    sample_rate: float
    """Share of the requests, 0..1."""
    max_queue: int
    """Requests that wait for their shadows; each holds a snapshot."""
    seconds: float
    """Time for one profile and one request."""


class Shadowing(Plugin[P], role=Role(title="Shadow profiles")):
    """Names profiles that decide nothing: they run afterwards, on the same endpoints, and their picks are compared."""

    @property
    @abstractmethod
    def shadow_profiles(self) -> Sequence[str]:
        """Names of profiles of the same configuration."""

    @property
    @abstractmethod
    def limits(self) -> ShadowLimits:
        """What they may take, all together."""
