# SPDX-License-Identifier: Apache-2.0
"""Suspected and ejected endpoints as payloads for other pickers, and theirs."""

import msgspec

from epp.framework.sharing import MOST_PAYLOAD_BYTES, Shareable
from epp.framework.snapshot import Snapshot
from epp.routing.datastore import Datastore
from epp.routing.outliers.outlier_detector import OutlierDetector

_ENTRY_BYTES = 80
_MOST_ENTRIES = MOST_PAYLOAD_BYTES // _ENTRY_BYTES


class _Failing(msgspec.Struct, frozen=True, array_like=True, gc=False):
    address: str
    seconds: float | None
    """Time left of its ejection, 0 for one that is used again, None for a suspicion."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Failing]).decode


class SharedFailures(Shareable):
    """Tells the endpoints that this picker itself suspects or ejects, when that changes.

    Another picker's suspicion leads to a probe of the port, and its ejection to an ejection, within the limit of this
    picker; each makes its own trial when the time is over.
    """

    share_name = "failures"

    def __init__(self, detector: OutlierDetector, store: Datastore) -> None:
        self._detector = detector
        self._store = store
        self._told: dict[str, bool] = {}
        """Whether it is ejected, as opposed to suspected, by address."""
        self._renews = False

    def renew(self) -> None:
        self._renews = True

    def changes(self, snapshot: Snapshot) -> bytes | None:  # noqa: ARG002  the detector has the present
        found, told = dict(self._detector.own_failures), self._told
        renews, self._renews = self._renews, False
        entries = [
            _Failing(address, seconds)
            for address, seconds in found.items()
            if renews or told.get(address) is not (seconds is not None)
        ]
        entries += [_Failing(address, 0.0) for address in told if told[address] and address not in found]
        self._told = {address: seconds is not None for address, seconds in found.items()}
        return _encode(entries[:_MOST_ENTRIES]) if entries else None

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:  # noqa: ARG002  it does not matter who
        """Suspect, eject or readmit endpoints of the pool."""
        entries = _decode(payload)
        for entry in entries[:_MOST_ENTRIES]:
            found = self._store.find(entry.address)
            if found is None:
                continue
            if entry.seconds is None:
                self._detector.suspect(found[1])
            else:
                self._detector.failed_elsewhere(found[1], entry.seconds)
        return len(entries)
