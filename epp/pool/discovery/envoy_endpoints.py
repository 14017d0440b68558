# SPDX-License-Identifier: Apache-2.0
"""Endpoints in files for Envoy's EDS: a ClusterLoadAssignment, or a DiscoveryResponse that contains some."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

import msgspec
import yaml

from epp.framework.input_errors import ParameterError, read_struct
from epp.kube.objects.decode import Fields, unknown_within
from epp.pool.discovery.targets import Target
from epp.runtime.addresses import HostPort, parse_host, parse_port

KIND = "ClusterLoadAssignment"
_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_RESOURCE = "type.googleapis.com/envoy.service.discovery.v3.Resource"
_LEFT_OUT = frozenset({"UNHEALTHY", "DRAINING", "TIMEOUT", 2, 3, 4})
"""States, as names or numbers, in which Envoy sends no requests to an endpoint."""
_LABELS = (
    ("region", "topology.kubernetes.io/region"),
    ("zone", "topology.kubernetes.io/zone"),
    ("sub_zone", "topology.istio.io/subzone"),
)
_SUBSET = "envoy.lb"
"""Metadata by which Envoy chooses subsets of endpoints."""
_MOST_REMARKS = 20
_CAPITAL = re.compile(r"(?<=[a-z0-9])[A-Z]")


class _Socket(msgspec.Struct, frozen=True):
    address: str
    port_value: Any


class _Address(msgspec.Struct, frozen=True):
    socket_address: _Socket


class _Server(msgspec.Struct, frozen=True):
    address: _Address


class _Metadata(msgspec.Struct, frozen=True):
    filter_metadata: dict[str, dict[str, Any]] = {}


class _Endpoint(msgspec.Struct, frozen=True):
    endpoint: _Server
    health_status: str | int = "UNKNOWN"
    metadata: _Metadata = _Metadata()


class _Locality(msgspec.Struct, frozen=True):
    region: str = ""
    zone: str = ""
    sub_zone: str = ""


class _Group(msgspec.Struct, frozen=True):
    lb_endpoints: list[_Endpoint] = []
    locality: _Locality = _Locality()


class _Assignment(msgspec.Struct, frozen=True):
    cluster_name: str = ""
    endpoints: list[_Group] = []


@cache
def _known_fields() -> Fields:
    found: Fields = yaml.safe_load((files("epp.pool.discovery") / "data/envoy_fields.yaml").read_text("utf-8"))
    return found


def is_of_envoy(document: Mapping[str, Any]) -> bool:
    """Return whether a document is in Envoy's format, not in our own."""
    keys = {_snake(str(key)) for key in document}
    groups = document.get("endpoints")
    first = groups[0] if isinstance(groups, list) and groups else None
    of_group = first.keys() if isinstance(first, Mapping) else ()
    return bool(keys & {"resources", "cluster_name", "@type"} or {"lb_endpoints", "lbEndpoints"}.intersection(of_group))


def read_assignments(document: Mapping[str, Any]) -> tuple[list[Target], tuple[str, ...]]:
    """Return the endpoints that take requests, and the cluster and path of each unknown field; raises ValueError.

    Field names have underscores, as in Envoy's protobuf, or not, as in its JSON. All resources are one pool.
    """
    plain = _with_underscores(document)
    targets: list[Target] = []
    remarks: list[str] = []
    for place, resource in _resources(plain):
        try:
            assignment = read_struct(_Assignment, resource)
        except ParameterError as error:
            raise ValueError(error.at(place.removesuffix("."))) from None
        name = assignment.cluster_name or "without a cluster_name"
        remarks += (f"{name}: {place}{each}" for each in unknown_within(resource, _known_fields()))
        for group_at, group in enumerate(assignment.endpoints):
            for at, each in enumerate(group.lb_endpoints):
                if each.health_status not in _LEFT_OUT:
                    socket_at = f"{place}endpoints[{group_at}].lb_endpoints[{at}].endpoint.address.socket_address"
                    targets.append(_target(each, group.locality, socket_at))
    return targets, tuple(islice(dict.fromkeys(remarks), _MOST_REMARKS))


def _resources(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each ClusterLoadAssignment and the beginning of its path."""
    if "resources" not in document:
        yield "", document
        return
    resources = document["resources"]
    if not isinstance(resources, list):
        raise ValueError("resources is not a list: for an empty pool write 'resources: []'")  # noqa: TRY004  of a file
    for index, entry in enumerate(resources):
        place, resource = f"resources[{index}].", entry
        if isinstance(entry, Mapping) and entry.get("@type") == _RESOURCE:
            place, resource = f"{place}resource.", entry.get("resource")
        if not isinstance(resource, Mapping) or resource.get("@type", _TYPE) != _TYPE:
            raise ValueError(f"{place[:-1]} is not a {KIND}: write one, with '@type': {_TYPE}")
        yield place, resource


def _target(found: _Endpoint, locality: _Locality, place: str) -> Target:
    socket, field = found.endpoint.address.socket_address, "address"
    try:
        host = parse_host(socket.address)
        field = "port_value"
        port = parse_port(socket.port_value)
    except ValueError as error:
        raise ValueError(f"{place}.{field}: {error}") from None
    labels = {label: value for name, label in _LABELS if (value := getattr(locality, name))}
    subset = found.metadata.filter_metadata.get(_SUBSET, {})
    labels |= {key: str(value) for key, value in subset.items() if isinstance(value, str | int | float)}
    return Target(str(HostPort(host, port)), host, port, labels=labels)


def _with_underscores(value: Any) -> Any:
    """Return the document with underscores in field names; keys of metadata are not field names, so they are kept."""
    if isinstance(value, Mapping):
        return {
            (name := _snake(str(key))): inner if name == "filter_metadata" else _with_underscores(inner)
            for key, inner in value.items()
            if inner is not None
        }
    return [_with_underscores(each) for each in value] if isinstance(value, list) else value


def _snake(name: str) -> str:
    return _CAPITAL.sub(lambda found: f"_{found[0].lower()}", name)
