# SPDX-License-Identifier: Apache-2.0
"""Scores that outside scorers give endpoints, their devices, nodes, apps or clusters."""

from collections.abc import Mapping
from math import nan

import msgspec
import numpy as np

from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.arrays import Floats, read_only
from epp.framework.records import Records
from epp.framework.snapshot import ACCELERATOR, Attribute, Snapshot


class DynamicScore(msgspec.Struct, frozen=True, kw_only=True):
    """A score of one name, as far as it bears on an endpoint."""

    value: float = nan
    """Of the most specific level but for devices; NaN for none."""
    per_pod: bool = False
    """Whether that is the level of pods, before which devices do not count."""
    devices: tuple[Mapping[str, float], ...] = ()
    """Values of devices by their id or kind, in lower case: those on the endpoint's node before those of any node."""
    expired: bool = False
    """Whether there was a value, and its validity has passed."""


class DynamicScores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores that bear on an endpoint."""

    by_name: Mapping[str, DynamicScore] = msgspec.field(default_factory=dict)


NO_DYNAMIC_SCORES = DynamicScores()

DYNAMIC_SCORES: Attribute[DynamicScores] = Attribute("dynamic_scores", NO_DYNAMIC_SCORES, "dynamic-score-source")
"""Scores that outside scorers give an endpoint."""


class DynamicScoreColumn:
    """The values of one score for each slot, joined again only when scores or hardware change."""

    __slots__ = ("_name", "_of", "_values")

    def __init__(self, name: str) -> None:
        self._name = name
        self._of: tuple[object, object] | None = None
        self._values: Floats = np.empty(0)

    def of(self, snapshot: Snapshot) -> Floats:
        """Return the values, NaN for none: pod before device before node, app and cluster."""
        found = (snapshot.attributes.get(DYNAMIC_SCORES.name), snapshot.attributes.get(ACCELERATOR.name))
        if (
            self._of is None
            or self._of[0] is not found[0]
            or self._of[1] is not found[1]
            or (len(self._values) != snapshot.capacity)
        ):
            self._of = found
            self._values = self._joined(snapshot.records(DYNAMIC_SCORES), snapshot.records(ACCELERATOR))
        return self._values

    def _joined(self, scores: Records[DynamicScores], tags: Records[AcceleratorTag]) -> Floats:
        pairs = zip(scores.values, tags.values, strict=True)
        return read_only(np.array([self._value(each.by_name.get(self._name), tag) for each, tag in pairs]))

    @staticmethod
    def _value(score: DynamicScore | None, tag: AcceleratorTag) -> float:
        if score is None:
            return nan
        if score.per_pod or not score.devices:
            return score.value
        for devices in score.devices:
            names = [{device.id.lower(), device.id.rpartition("/")[2].lower()} for device in tag.devices]
            found = [devices[name] for either in names for name in sorted(either) if name in devices]
            if not found and (kind := tag.partition.profile.lower() or "all") in devices and tag.model:
                found = [devices[kind]]
            if found:
                return sum(found) / len(found)
        return score.value
