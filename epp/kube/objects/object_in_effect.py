# SPDX-License-Identifier: Apache-2.0
"""Objects in effect, each in its last good version."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from epp.kube.objects.base import Object
from epp.kube.objects.decode import ObjectKey

Judge = Callable[[Object], Iterable[str]]
"""Returns the invalid values of an object that was decoded: field, value and remedy of each."""


def no_faults(_object: Object) -> Iterable[str]:
    """Find no fault: every value that can be decoded is valid."""
    return ()


class ObjectInEffect(NamedTuple):
    """An object that is in effect."""

    key: ObjectKey
    object: Object
    sound: bool
    """Whether all its values are valid."""
    doubts: tuple[str, ...] = ()
    """Field, value and remedy of each impossible value, which the object is used without."""


def replaces(reason: str, earlier: ObjectInEffect | None) -> bool:
    """Return whether a decoded version takes effect: one with invalid values, the `reason`, replaces no sound one."""
    return not reason or earlier is None or not earlier.sound
