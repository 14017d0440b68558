# SPDX-License-Identifier: Apache-2.0
"""An immutable view of the datastore: columns indexed by slot, one slot for each endpoint.

An endpoint keeps its slot while it is in the pool, so that other indexes, such as the bit masks of a prefix index, can
identify it by the slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from epp.framework.accelerators.tag import NO_TAG, AcceleratorTag
from epp.framework.arrays import Floats, Positions
from epp.framework.endpoint import Endpoint
from epp.framework.records import Records

__all__ = [
    "ACCELERATOR",
    "AVOIDED",
    "CLUSTER_KV_USAGE",
    "CLUSTER_QUEUE",
    "FAILED",
    "GPU_UTILIZATION",
    "INHERITED",
    "IN_FLIGHT",
    "IN_FLIGHT_TOKENS",
    "KV_BLOCKS",
    "KV_BLOCK_TOKENS",
    "KV_USAGE",
    "LAST_PICKED",
    "LOAD_AT",
    "LORA",
    "METRICS_AT",
    "MODELS",
    "NODE_LABELS",
    "PEER_REQUESTS",
    "PEER_TOKENS",
    "PREFIX_HIT_TOKENS",
    "PREFIX_QUERY_TOKENS",
    "REACHABLE",
    "ROUND_TRIP",
    "RUNNING",
    "SERVED",
    "TOPOLOGY",
    "WAITING",
    "Attribute",
    "Column",
    "LoraState",
    "Snapshot",
    "Topology",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Column:
    """Definition of a column, which has one number for each endpoint."""

    name: str
    unit: str
    unknown: float = field(default=nan, compare=False)  # NaN is equal to nothing
    """The value of an endpoint without a report."""
    default_producer: str = ""
    """Plugin type that is added if a configured plugin reads the column and no plugin writes it; empty for none."""
    lasting: bool = False
    """Whether values stay valid without further reports, such as sizes and counters."""
    declared_producer: str = ""
    """Plugin type that a configuration must declare to use the column, because it needs a source; empty for none."""

    def __hash__(self) -> int:
        """Return the hash of the name, because columns are keys of reports."""
        return hash(self.name)


WAITING = Column("waiting", "requests")
"""Requests in the engine's queue."""
RUNNING = Column("running", "requests")
"""Requests in the engine's batch."""
KV_USAGE = Column("kv_usage", "0..1")
"""Share of the KV cache in use."""
KV_BLOCK_TOKENS = Column("kv_block_tokens", "tokens", lasting=True)
"""Tokens in one KV block of the engine."""
KV_BLOCKS = Column("kv_blocks", "blocks", lasting=True)
"""Number of KV blocks of the engine."""
PREFIX_QUERY_TOKENS = Column("prefix_query_tokens", "tokens", lasting=True)
"""Prompt tokens looked up in the engine's prefix cache since it started."""
PREFIX_HIT_TOKENS = Column("prefix_hit_tokens", "tokens", lasting=True)
"""Prompt tokens found in the engine's prefix cache since it started."""
METRICS_AT = Column("metrics_at", "seconds on the clock")
"""Time of the last report of the endpoint."""
LOAD_AT = Column("load_at", "seconds on the clock")
"""Time of the last change of the report. An unchanged report of a busy engine is an old one, for example from a cache:
other clients may have sent requests since."""
IN_FLIGHT = Column("in_flight", "requests", 0.0)
"""Requests without a complete response: of this picker, inherited ones, and those of peers that share state."""
INHERITED = Column("inherited", "requests", 0.0)
"""Requests in flight from before this picker started or took over."""
PEER_REQUESTS = Column("peer_requests", "requests", 0.0)
"""Requests in flight of other pickers that share state."""
IN_FLIGHT_TOKENS = Column("in_flight_tokens", "tokens", 0.0, "inflight-load-producer")
"""Uncached prompt tokens of requests of this picker, and of peers that share state, that have no first token yet."""
PEER_TOKENS = Column("peer_tokens", "tokens", 0.0)
"""Part of IN_FLIGHT_TOKENS from other pickers."""
SERVED = Column("served", "requests", 0.0)
"""Requests of this picker that have ended."""
FAILED = Column("failed", "requests", 0.0)
"""Requests of this picker that have ended with a status of 500 or more."""
LAST_PICKED = Column("last_picked", "sequence number", 0.0)
"""Sequence number of the last pick; 0 for none."""
ROUND_TRIP = Column("round_trip", "seconds", lasting=True)
"""Round-trip time to the endpoint, measured with the last connection for polls."""
ANSWERS, SILENT, REFUSES = 1.0, 0.5, 0.0
GPU_UTILIZATION = Column("GPUUtilization", "0..1")
"""Share of time in which the busiest GPU of the endpoint was active."""
_OF_CLUSTERS = "multicluster-metrics-extractor"
CLUSTER_KV_USAGE = Column("llm-d.ai/multicluster-kv-cache-utilization", "0..1", declared_producer=_OF_CLUSTERS)
"""Mean KV cache utilization in the cluster behind the endpoint."""
CLUSTER_QUEUE = Column("llm-d.ai/multicluster-queue-size", "requests", declared_producer=_OF_CLUSTERS)
"""Mean number of waiting requests of the endpoints in the cluster behind the endpoint."""
REACHABLE = Column("reachable", "0..1", ANSWERS)
"""ANSWERS; SILENT while it accepts connections but does not answer; REFUSES while it cannot answer any request."""
AVOIDED = Column("avoided", "0 or 1", 0.0)
"""1 while the endpoint is suspected or ejected because of failed requests."""

REQUEST_COLUMNS = (
    IN_FLIGHT,
    INHERITED,
    PEER_REQUESTS,
    IN_FLIGHT_TOKENS,
    PEER_TOKENS,
    SERVED,
    FAILED,
    LAST_PICKED,
    AVOIDED,
)
"""Columns that each picker process fills from its own requests, and from those that peers share."""
CORE_COLUMNS = (
    WAITING,
    RUNNING,
    KV_USAGE,
    KV_BLOCK_TOKENS,
    KV_BLOCKS,
    PREFIX_QUERY_TOKENS,
    PREFIX_HIT_TOKENS,
    METRICS_AT,
    LOAD_AT,
    REACHABLE,
    *REQUEST_COLUMNS,
)


def column_named(name: str, producer: str | None = "") -> Column:
    """Return the predefined column of this name, or else a column of an extractor.

    If `producer` is None, the name may end with a producer: `GPUUtilization/dcgm-extractor`.
    """
    if producer is None and "/" in name:
        name = name.rpartition("/")[0]
    known = {column.name: column for column in (*CORE_COLUMNS, GPU_UTILIZATION)}
    return known.get(name) or Column(name, "")


@dataclass(frozen=True, slots=True)
class Attribute(Generic[T]):
    """Definition of an attribute, which has one record for each endpoint."""

    name: str
    unknown: T = field(hash=False)
    """The value of an endpoint without a report."""
    default_producer: str = ""
    """Plugin type that is added if a configured plugin reads the attribute and no plugin writes it; empty for none."""


@dataclass(frozen=True, slots=True)
class LoraState:
    """Names of LoRA adapters of an endpoint."""

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    max_adapters: int = 0
    """Maximum number of loaded adapters; 0 if the endpoint serves none."""
    loaded: tuple[str, ...] = ()
    """Last used adapters, at most `max_adapters`, the latest first; an engine keeps these, but reports only some."""


def adapters_in_use(states: tuple[LoraState, ...]) -> frozenset[str]:
    """Return the running and waiting adapters of all endpoints."""
    return frozenset().union(*(state.running | state.waiting for state in states))


LORA: Attribute[LoraState] = Attribute("lora", LoraState())
"""LoRA adapters of an endpoint."""
MODELS: Attribute[frozenset[str]] = Attribute("models", frozenset())
"""Names of the models that the endpoint reports."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Location of an endpoint; empty if unknown."""

    host: str = ""
    rack: str = ""
    zone: str = ""
    region: str = ""
    cluster: str = ""


TOPOLOGY: Attribute[Topology] = Attribute("topology", Topology(), "topology-extractor")
"""Location of an endpoint."""

ACCELERATOR: Attribute[AcceleratorTag] = Attribute("accelerator", NO_TAG, "accelerator-data-source")
"""Hardware of an endpoint; `tag_numbers` and `tag_mask` convert it to arrays."""

NODE_NAME = "metadata.name"
"""Key of the name of a node among its labels."""
NODE_LABELS: Attribute[Mapping[str, str]] = Attribute("node_labels", MappingProxyType({}), "accelerator-data-source")
"""Labels of the node of an endpoint, and its name as `metadata.name`; empty for an unknown node."""

CORE_ATTRIBUTES: tuple[Attribute[Any], ...] = (LORA, MODELS, TOPOLOGY, ACCELERATOR, NODE_LABELS)

_NO_SLOTS: Positions = np.empty(0, dtype=np.intp)


class Snapshot(msgspec.Struct, frozen=True, eq=False):
    """All endpoints and their data at one moment; arrays are read-only and indexed by slot."""

    generation: int = 0
    """Number that increases with each change of the datastore."""
    slots: Positions = msgspec.field(default_factory=lambda: _NO_SLOTS)
    """Used slots, ascending."""
    available: Positions = msgspec.field(default_factory=lambda: _NO_SLOTS)
    """Slots of endpoints that answer and are not avoided; if there are none, all that answer; if there are none either,
    the silent ones, because the picker itself may be slow."""
    endpoints: Records[Endpoint | None] = msgspec.field(default_factory=lambda: Records[Endpoint | None](()))
    columns: Mapping[str, Floats] = msgspec.field(default_factory=dict)
    attributes: Mapping[str, Records[Any]] = msgspec.field(default_factory=dict)
    dry_run: bool = False
    """Whether it is for simulated requests, from which plugins must not learn."""

    @property
    def capacity(self) -> int:
        """Length of all columns, including free slots."""
        return len(self.endpoints.values)

    def column(self, column: Column) -> Floats:
        """Return the numbers of all slots; unknown values for a column without a source."""
        values = self.columns.get(column.name)
        return np.full(self.capacity, column.unknown) if values is None else values

    def records(self, attribute: Attribute[T]) -> Records[T]:
        """Return the records of all slots."""
        found: Records[T] | None = self.attributes.get(attribute.name)
        return Records((attribute.unknown,) * self.capacity) if found is None else found

    def age_seconds(self, now: float) -> Floats:
        """Return the seconds since the last report of the endpoint of each slot; NaN without a report."""
        return now - self.column(METRICS_AT)
