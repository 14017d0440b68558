# SPDX-License-Identifier: Apache-2.0
"""A limit of a quota that a request does not fit in, in words for its client."""

from dataclasses import dataclass

from epp.framework.printable import quoted


@dataclass(frozen=True, slots=True)
class Breach:
    """A limit of a quota that a request does not fit in."""

    tenant: str
    key: str
    """Which limit: `total.max.workers.limit`, in the words of TensorFusion where it has it."""
    requested: float
    """What the request would make of it, with all that is taken already."""
    limit: float

    def __str__(self) -> str:
        """Return a sentence for the client."""
        limit, requested = self._shown(self.limit), self._shown(self.requested)
        return f"quota {self.key} of {quoted(self.tenant)} is {limit}, and with this request {requested}"

    def _shown(self, amount: float) -> str:
        return f"{amount / 2**30:.6g} GiB" if ".vram." in self.key else f"{amount:.10g}"
