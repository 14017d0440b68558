# SPDX-License-Identifier: Apache-2.0
"""All that a picker remembers, as plain values: two are equal exactly where nothing of it has changed."""

import array
import re
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import msgspec
import numpy as np

from epp.framework import Candidates, Endpoint
from epp.framework.clock import Clock
from epp.framework.plugin import Parameters
from epp.framework.snapshot import Records, Snapshot

MEMOS = {
    "AcceleratorSelectionProducer": {"_used"},
    "AcceleratorPolicyScorer": {"_scorer_for"},
    "ApproxPrefixCacheProducer": {"_seed", "_reported", "_engine_tokens"},
    "ClassTotals": {"_inventory", "_totals"},
    "ClusterIndex": {"_clusters", "_of"},
    "EndpointRatesProducer": {"_last_model"},
    "ParserTable": {"_found"},
    "PrefixIndex": {"_slots_of"},
    "Reported": {"_arrays", "_available", "_by_slot", "_of_available"},
    "RateLearner": {"_logs", "_new"},
    "WakeUpCost": {"_costs", "_tags"},
}
"""What is computed from other things, and again where it is missing."""
_WHOLE = (Snapshot, Records, Candidates, Endpoint, Parameters)
"""Immutable: as good as their identity."""
_CODE = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, re.Pattern)


def footprint(value: object, known: dict[int, int] | None = None) -> object:  # noqa: PLR0911  one for each kind
    """Return the value as plain ones; an object as its attributes, without memos. Arrays may have grown by zeros."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | Enum):
        return repr(value)
    if isinstance(value, np.ndarray):
        return (np.trim_zeros(value, "b") if value.ndim == 1 else value).tobytes()
    if isinstance(value, array.array | bytearray):
        return bytes(value)
    if isinstance(value, _CODE):
        return getattr(value, "__qualname__", repr(value))
    if isinstance(value, _WHOLE):
        return id(value)
    known = {} if known is None else known
    if isinstance(value, Clock) or id(value) in known:
        return type(value).__name__, known.get(id(value))
    known[id(value)] = len(known)
    if isinstance(value, Mapping):
        return tuple((footprint(key, known), footprint(each, known)) for key, each in value.items())
    if isinstance(value, AbstractSet):
        return tuple(sorted(repr(footprint(each, known)) for each in value))
    if isinstance(value, tuple | list | deque):
        return tuple(footprint(each, known) for each in value)
    return type(value).__name__, tuple((name, footprint(each, known)) for name, each in attributes(value))


def attributes(value: object) -> list[tuple[str, object]]:
    """Return the attributes of an object, without memos."""
    names = dict.fromkeys(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    if isinstance(value, msgspec.Struct):
        names |= dict.fromkeys(value.__struct_fields__)
    memos = MEMOS.get(type(value).__name__, set())
    missing = object()
    found = [(name, getattr(value, name, missing)) for name in names if name not in memos]
    return [(name, each) for name, each in found if each is not missing]
