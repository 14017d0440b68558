# SPDX-License-Identifier: Apache-2.0
"""Reads what the gateway sends in headers and metadata."""

from epp.director import Subset
from epp.extproc.wire import HeaderMap, Metadata
from epp.framework import Headers
from epp.framework.headers import DESTINATION_NAMESPACE, DESTINATION_SERVED, SUBSET, SUBSET_NAMESPACE


def read_headers(headers: HeaderMap) -> Headers:
    """Return the fields of a header message; bytes that are not UTF-8 are replaced."""
    return Headers.of_lower(
        [
            (field.key.lower(), raw.decode("utf-8", "replace") if (raw := field.raw_value) else field.value)
            for field in headers.headers
        ]
    )


def read_some(headers: HeaderMap, names: frozenset[str]) -> dict[str, str]:
    """Return the first value of each of these names that is present."""
    found: dict[str, str] = {}
    for field in headers.headers:
        name = field.key.lower()
        if name in names and name not in found:
            raw = field.raw_value
            found[name] = raw.decode("utf-8", "replace") if raw else field.value
    return found


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
