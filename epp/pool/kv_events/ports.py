# SPDX-License-Identifier: Apache-2.0
"""The ports of an endpoint's KV events: by configuration, by its labels, or as the model server tells them."""

import re
from typing import NamedTuple

import msgspec

from epp.framework.datalayer import NotAskedError, PageError, UnreachableError
from epp.framework.endpoint import Endpoint
from epp.framework.limits import AbsolutePath
from epp.pool.collectors.sources.http import HttpSource, HttpSourceParameters
from epp.pool.discovery.pods import KV_PORTS
from epp.pool.kv_events.subscriber import Addresses

_RANK = re.compile(r"-rank-(\d+)$")
_PORT = re.compile(r"tcp://.*:(\d{1,5})")
_NUMBER = re.compile(r"[0-9]{1,5}")
_LAST_PORT = 65_535


class Ports(NamedTuple):
    """Ports of one rank of an engine."""

    events: int
    replay: int = 0
    """0 if the engine does not repeat events."""

    def addresses_at(self, endpoint: Endpoint) -> Addresses:
        """Return the addresses, which are always at the endpoint."""
        host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
        return Addresses(f"tcp://{host}:{self.events}", f"tcp://{host}:{self.replay}" if self.replay else "")


def rank_of(endpoint: Endpoint) -> int:
    """Return the index of the endpoint among those of its pod."""
    found = _RANK.search(endpoint.name)
    return int(found[1]) if found else 0


def labelled_ports(endpoint: Endpoint, default: Ports) -> Ports:
    """Return the ports in the labels of an endpoint, or else the default ones; raises ValueError."""
    return Ports(
        *(
            _labelled_port(endpoint, label, port, lowest)
            for label, port, lowest in zip(KV_PORTS, default, (1, 0), strict=True)
        )
    )


def _labelled_port(endpoint: Endpoint, label: str, default: int, lowest: int) -> int:
    text = endpoint.labels.get(label)
    if text is None:
        return default
    rank = rank_of(endpoint)
    if not _NUMBER.fullmatch(text) or not lowest <= int(text) <= _LAST_PORT - rank:
        raise ValueError(f"{label} is {text[:100]!r}; write a port from {lowest} to {_LAST_PORT - rank}")
    return int(text) and int(text) + rank


class _Source(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None
    data_parallel_rank: int | None = None


_decode = msgspec.json.Decoder(dict[str, _Source] | list[_Source]).decode


def read_ports(page: bytes, rank: int) -> Ports:
    """Return the ports of a rank in an answer of `/kv_event_sources`; raises ValueError if they are not there.

    vLLM 0.32 answers an object by rank, later versions a list. Hosts in the answer are not used: no model server
    directs the picker to another host.
    """
    answer = _decode(page)
    by_rank = answer if isinstance(answer, dict) else {str(each.data_parallel_rank or 0): each for each in answer}
    source = by_rank.get(str(rank)) or (next(iter(by_rank.values())) if len(by_rank) == 1 else None)
    if source is None:
        raise ValueError(f"it has no events of rank {rank}")
    return Ports(_port_in(source.endpoint), _port_in(source.replay_endpoint) if source.replay_endpoint else 0)


def _port_in(address: str) -> int:
    found = _PORT.fullmatch(address)
    if found is None or not 0 < int(found[1]) <= _LAST_PORT:
        raise ValueError(f"{address[:100]!r} is no address with a TCP port")
    return int(found[1])


class _Parameters(HttpSourceParameters, frozen=True):
    path: AbsolutePath = "/kv_event_sources"


class EventSources(HttpSource[_Parameters]):
    """Asks a model server for the ports of its events."""

    plugin_type = "kv-event-sources"
    accept = "application/json"
    most_bytes = 256 * 1024

    async def ports_of(self, endpoint: Endpoint) -> Ports | str:
        """Return the ports, or why they are not known."""
        try:
            return read_ports(await self.fetch(endpoint), rank_of(endpoint))
        except (UnreachableError, PageError, NotAskedError, msgspec.DecodeError, ValueError) as error:
            return str(error)
