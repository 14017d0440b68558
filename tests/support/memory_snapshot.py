# SPDX-License-Identifier: Apache-2.0
"""A snapshot of the state of a picker as plain values, to compare the state before and after."""

import array
import re
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

import msgspec
import numpy as np

from epp.framework import Candidates, Endpoint
from epp.framework.clock import Clock
from epp.framework.plugin import Parameters
from epp.framework.snapshot import Records, Snapshot

MEMOS = {
    "AcceleratorSelectionProducer": {"_used"},
    "AcceleratorPolicyScorer": {"_scorers_for"},
    "ApproxPrefixCacheProducer": {"_reported", "_engine_tokens"},
    "ClassTotals": {"_nodes", "_totals"},
    "ClusterIndex": {"_clusters", "_sources"},
    "EndpointRatesProducer": {"_last_model"},
    "IdleNodes": {"_known"},
    "MultiClusterApproxPrefixCacheProducer": {"_reported", "_engine_tokens"},
    "NetworkSeconds": {"_sources", "_seconds", "_numbers"},
    "ParserTable": {"_found"},
    "PrefixIndex": {"_members"},
    "Reported": {"_arrays", "_available", "_by_slot", "_of_available"},
    "RateLearner": {"_logs"},
    "WakeUpCost": {"_costs", "_tags"},
}
"""What is computed from other things, and again where it is missing."""
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum)
_BYTES = (array.array, bytearray)
_WHOLE = (Snapshot, Records, Candidates, Endpoint, Parameters)
"""Immutable: as good as their identity."""
_CODE = (type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, re.Pattern)
_SEQUENCES = (tuple, list, deque)
_MISSING = object()


def footprint(value: object, known: dict[int, int] | None = None) -> object:  # noqa: PLR0911  one for each kind
    """Return the value as plain ones; an object as its attributes, without memos. Arrays may have grown by zeros."""
    kind = _kind_of(type(value))
    if kind is _PLAIN:
        return repr(value)
    if kind is np.ndarray:
        return (np.trim_zeros(value, "b") if value.ndim == 1 else value).tobytes()
    if kind is _BYTES:
        return bytes(value)
    if kind is _CODE:
        return getattr(value, "__qualname__", repr(value))
    if kind is _WHOLE:
        return id(value)
    known = {} if known is None else known
    if kind is Clock or id(value) in known:
        return type(value).__name__, known.get(id(value))
    known[id(value)] = len(known)
    return _parts(kind, value, known)


@cache
def _kind_of(cls: type) -> object:
    """Return which of the kinds that footprints tell apart the class belongs to; None for any other."""
    kinds = (_PLAIN, np.ndarray, _BYTES, _CODE, _WHOLE, Clock, Mapping, AbstractSet, _SEQUENCES)
    return next((kind for kind in kinds if issubclass(cls, kind)), None)


def _parts(kind: object, value: object, known: dict[int, int]) -> tuple:
    if kind is Mapping:
        return tuple([(footprint(key, known), footprint(each, known)) for key, each in value.items()])
    if kind is AbstractSet:
        return tuple(sorted(repr(footprint(each, known)) for each in value))
    if kind is _SEQUENCES:
        return tuple([footprint(each, known) for each in value])
    return type(value).__name__, tuple([(name, footprint(each, known)) for name, each in attributes(value)])


def attributes(value: object) -> list[tuple[str, object]]:
    """Return the attributes of an object, without memos."""
    memos = MEMOS.get(type(value).__name__, ())
    names = dict.fromkeys((*getattr(value, "__dict__", ()), *_slots_of(type(value))))
    found = [(name, getattr(value, name, _MISSING)) for name in names if name not in memos]
    return [(name, each) for name, each in found if each is not _MISSING]


@cache
def _slots_of(cls: type) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for each in cls.__mro__:
        slots = each.__dict__.get("__slots__", ())
        names |= dict.fromkeys((slots,) if isinstance(slots, str) else slots)
    return (*names, *(cls.__struct_fields__ if issubclass(cls, msgspec.Struct) else ()))
