# SPDX-License-Identifier: Apache-2.0
"""Findings of `epp check` on prices: plugins that choose by price, in a configuration that has none."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from epp.config import Assembly, Problem
from epp.framework import ConfigurationError, Endpoint, SystemClock
from epp.hardware.tagger import AcceleratorTagger
from epp.pool.collectors import Tagging
from epp.pool.discovery import FileDiscovery, PodFileDiscovery
from epp.routing.datastore import Datastore
from epp.telemetry.endpoints import REMEDY, Known, prices_of


class PriceFindings(NamedTuple):
    """What is certain, and what depends on where the picker runs."""

    warnings: tuple[Problem, ...] = ()
    notes: tuple[Problem, ...] = ()


def price_findings(assembly: Assembly) -> PriceFindings:
    """Return what there is to say; nothing for a configuration without plugins that need prices."""
    if not any(plugin.without_prices for plugin in assembly.plugins):
        return PriceFindings()
    sources = [tagger for tagger in assembly.taggers if isinstance(tagger, AcceleratorTagger)]
    if not sources:
        return PriceFindings()  # that nothing is known of the hardware is another finding
    if assembly.discovery is not None:
        endpoints = _endpoints_of(assembly)
        return PriceFindings() if endpoints is None else PriceFindings(tuple(_certain(assembly, endpoints)))
    if any(source.has_prices for source in sources):
        return PriceFindings()
    why = "this configuration has none, nor does it name the endpoints"
    if any(source.parameters.read_cluster for source in sources):
        elsewhere = f"{why}; without prices in the cluster's objects"
        return PriceFindings(notes=tuple(_of_plugins(assembly, elsewhere)))
    return PriceFindings(warnings=tuple(_of_plugins(assembly, why)))


def _endpoints_of(assembly: Assembly) -> Sequence[Endpoint] | None:
    """Return the endpoints that the configuration itself names; None where that takes more than its files."""
    discovery = assembly.discovery
    try:
        if isinstance(discovery, FileDiscovery):
            return discovery.listed()
        if isinstance(discovery, PodFileDiscovery):
            store = Datastore(SystemClock())
            asyncio.run(discovery.start(store))
            return store.endpoints
    except ConfigurationError:
        return None  # a finding of its own, when the picker starts
    return None


def _certain(assembly: Assembly, endpoints: Sequence[Endpoint]) -> Iterator[Problem]:
    store = Datastore(SystemClock())
    store.replace(endpoints)
    Tagging(store, assembly.taggers)
    prices = prices_of(store.snapshot())
    if prices.known is Known.NONE:
        yield from _of_plugins(assembly, "no endpoint has one")
    elif prices.known is Known.SOME:
        message = f"{len(prices.missing)} of {len(endpoints)} endpoints have no price: {prices.names}"
        yield assembly.loaded.problem(message, "dataLayer", "discovery", remedy=REMEDY)


def _of_plugins(assembly: Assembly, why: str) -> Iterator[Problem]:
    for plugin in assembly.plugins:
        if plugin.without_prices:
            message = f"plugin {plugin.name!r} goes by price, and {why}: {plugin.without_prices}"
            yield assembly.loaded.problem(message, *assembly.instances.path_of(plugin), remedy=REMEDY)
