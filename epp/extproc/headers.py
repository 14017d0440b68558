# SPDX-License-Identifier: Apache-2.0
"""Reads the headers and metadata that a gateway sends."""

from epp.extproc.wire import HeaderMap, Metadata
from epp.framework import Headers
from epp.framework.headers import DESTINATION_NAMESPACE, DESTINATION_SERVED, SUBSET, SUBSET_NAMESPACE
from epp.routing.director import Subset

MOST_FIELDS = 1000
"""Header fields of one message that are read; Envoy's `max_headers_count` is 100 by default."""
MOST_BYTES = 256 * 1024
"""Of all header fields of one message; Envoy's `max_request_headers_kb` is 60 by default."""
_SHORT_BYTES = 4096


def read_headers(headers: HeaderMap) -> Headers:
    """Return the fields of a header message; bytes that are not UTF-8 are replaced."""
    fields = headers.headers
    found = {
        field.key.lower(): raw.decode("utf-8", "replace") if (raw := field.raw_value) else field.value
        for field in fields
    }
    if len(found) == len(fields):
        return Headers.unique(found)
    return Headers((field.key, field.raw_value.decode("utf-8", "replace") or field.value) for field in fields)


def read_some(headers: HeaderMap, names: frozenset[str]) -> dict[str, str]:
    """Return the first value of each of these names that is present."""
    found: dict[str, str] = {}
    for field in headers.headers:
        name = field.key.lower()
        if name in names and name not in found:
            raw = field.raw_value
            found[name] = raw.decode("utf-8", "replace") if raw else field.value
    return found


def are_too_large(headers: HeaderMap) -> bool:
    """Return whether there are more fields, or more bytes, than are read."""
    return len(headers.headers) > MOST_FIELDS or headers.ByteSize() > MOST_BYTES


def read_first(headers: HeaderMap) -> Headers:
    """Return the first 1,000 fields of a message that is too large, but for those of more than 4 KiB."""
    first = headers.headers[:MOST_FIELDS]
    short = [field for field in first if len(field.key) + len(field.raw_value) + len(field.value) <= _SHORT_BYTES]
    return read_headers(HeaderMap(headers=short))


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
