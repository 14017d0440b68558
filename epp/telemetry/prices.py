# SPDX-License-Identifier: Apache-2.0
"""Endpoints without a price, where plugins choose by price: said at the start, and when that changes."""

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, NamedTuple

import numpy as np
import structlog

from epp.framework.accelerators.tag import AcceleratorKind, AcceleratorTag
from epp.framework.plugin import Plugin
from epp.framework.records import Derivation
from epp.framework.snapshot import ACCELERATOR, Snapshot

REMEDY = (
    "name a file of prices in the parameter prices of accelerator-data-source, or write costPerHour for the endpoint, "
    "or cost into its AcceleratorClass"
)
_NAMES_SHOWN = 10

_log = structlog.get_logger()


class Known(Enum):
    """Of which endpoints a price is known."""

    ALL = auto()
    SOME = auto()
    NONE = auto()


class Prices(NamedTuple):
    """The endpoints without any price; those on CPUs need none."""

    known: Known
    missing: tuple[str, ...] = ()
    """Their ids."""

    @property
    def names(self) -> str:
        """The ids as text, of many the first."""
        more = f" and {len(self.missing) - _NAMES_SHOWN} more" if len(self.missing) > _NAMES_SHOWN else ""
        return f"{', '.join(self.missing[:_NAMES_SHOWN])}{more}"


def prices_of(snapshot: Snapshot) -> Prices:
    """Return which endpoints have no price."""
    tags = snapshot.records(ACCELERATOR)
    lacking = tags.derive_mask(_lacks_price)
    slots = snapshot.slots[lacking[snapshot.slots]].tolist()
    missing = tuple(endpoint.id for slot in slots if (endpoint := snapshot.endpoints.values[slot]) is not None)
    if not missing:
        return Prices(Known.ALL)
    has_any = tags.derive_mask(_has_price)[snapshot.slots].any()
    return Prices(Known.SOME if has_any else Known.NONE, missing)


def count_unpriced(snapshot: Snapshot) -> int:
    """Return how many endpoints have no price."""
    return int(np.count_nonzero(snapshot.records(ACCELERATOR).derive_mask(_lacks_price)[snapshot.slots]))


class PriceWatch:
    """Says which plugins lack prices: when no endpoint has one, and of which endpoints, each once while it lasts."""

    def __init__(self) -> None:
        self._users: tuple[str, ...] = ()
        self._state = Known.ALL
        self._told: frozenset[str] = frozenset()
        """Endpoints without a price that were named."""

    def look(self, snapshot: Snapshot, plugins: Iterable[Plugin[Any]]) -> None:
        """Log what has changed for these plugins."""
        effects = {plugin.name: plugin.without_prices for plugin in plugins if plugin.without_prices}
        if tuple(effects) != self._users:
            self._users, self._state, self._told = tuple(effects), Known.ALL, frozenset()
        if not effects or not len(snapshot.slots):
            return
        before = self._state
        self._state, missing = prices_of(snapshot)
        named, self._told = self._told, frozenset(missing)
        if self._state is Known.NONE and before is not Known.NONE:
            for name, effect in effects.items():
                _log.warning("no endpoint has a price", plugin=name, effect=effect, remedy=REMEDY)
        elif self._state is Known.SOME and (before is not Known.SOME or not named.issuperset(missing)):
            _log.warning(
                "endpoints without a price",
                total=len(missing),
                endpoints=list(missing[:_NAMES_SHOWN]),
                plugins=list(effects),
                remedy=REMEDY,
            )
        elif self._state is Known.ALL and before is not Known.ALL:
            _log.info("all endpoints have a price")


def _has_price(tag: AcceleratorTag) -> bool:
    cost = tag.cost
    return tag.cost_per_hour() is not None or cost.per_million_tokens is not None or bool(cost.tier)


def _lacks_price(tag: AcceleratorTag) -> bool:
    return tag.kind is not AcceleratorKind.CPU and not _has_price(tag)


PRICE_DERIVATIONS: tuple[Derivation, ...] = ((np.bool_, _lacks_price), (np.bool_, _has_price))
"""What is derived of the tag of each endpoint."""
