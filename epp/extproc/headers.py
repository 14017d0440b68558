"""Header names of the endpoint-picker protocol, and reading what the gateway sends in headers and metadata."""

from collections.abc import Iterator

from epp.director import Subset
from epp.extproc.wire import HeaderMap, Metadata
from epp.framework import Headers

DESTINATION = "x-gateway-destination-endpoint"
DESTINATION_NAMESPACE = "envoy.lb"
DESTINATION_SERVED = "x-gateway-destination-endpoint-served"
ENDPOINT_SCORES = "x-gateway-destination-endpoint-scores"
SUBSET = "x-gateway-destination-endpoint-subset"
SUBSET_NAMESPACE = "envoy.lb.subset_hint"
DROPPED_REASON = "x-llm-d-request-dropped-reason"
WENT_INTO_RESPONSE_HEADERS = "x-went-into-resp-headers"
REQUEST_ID = "x-request-id"
CONTENT_LENGTH = "content-length"

_CONTROL_PREFIXES = ("x-llm-d-", "x-gateway-", "x-epp-")
_CONTROL_NAMES = frozenset(
    {
        "x-slo-ttft-ms",
        "x-slo-tpot-ms",
        "x-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
        "x-kv-cache-source-host-port",
    }
)


def read_headers(headers: HeaderMap) -> Headers:
    """Return the fields of a header message; bytes that are not UTF-8 are replaced."""
    return Headers(_fields(headers))


def control_names(headers: Headers) -> list[str]:
    """Return the names present that speak to the picker or to a model server's sidecar: a client's must not pass."""
    return [name for name in headers if name.startswith(_CONTROL_PREFIXES) or name in _CONTROL_NAMES]


def read_subset(metadata: Metadata) -> Subset | None:
    """Return the subset hint: a list, or a comma-separated string; None where the gateway gives none."""
    namespace = metadata.filter_metadata
    if SUBSET_NAMESPACE not in namespace:
        return None
    fields = namespace[SUBSET_NAMESPACE].fields
    if SUBSET not in fields:
        return None
    value = fields[SUBSET]
    if value.WhichOneof("kind") == "list_value":
        return Subset.parse(item.string_value for item in value.list_value.values)
    return Subset.parse([value.string_value])


def read_served(metadata: Metadata) -> str | None:
    """Return the address that the gateway says it used; None where it says nothing."""
    namespace = metadata.filter_metadata
    if DESTINATION_NAMESPACE not in namespace:
        return None
    fields = namespace[DESTINATION_NAMESPACE].fields
    return fields[DESTINATION_SERVED].string_value or None if DESTINATION_SERVED in fields else None


def _fields(headers: HeaderMap) -> Iterator[tuple[str, str]]:
    for field in headers.headers:
        raw = field.raw_value
        yield field.key, raw.decode("utf-8", "replace") if raw else field.value
