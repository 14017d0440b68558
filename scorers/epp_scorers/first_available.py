"""Prefers accelerator classes in a given order, and passes over those whose endpoints are all saturated."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from epp.framework import Candidates, Category, Clock, Floats, Mask, Parameters, Positions, Request, Scorer
from epp.framework.accelerator_arrays import tag_mask
from epp.framework.accelerator_classes import entry_for, names_of
from epp.framework.accelerators import AcceleratorTag, Routability
from epp.framework.snapshot import ACCELERATOR, KV_USAGE, RUNNING, WAITING

_UNLISTED = -1


class ClassLimits(Parameters, frozen=True):
    """Where endpoints of one class are saturated, as far as other than all others."""

    queue_depth_threshold: float | None = None
    """Requests waiting from which an endpoint is saturated."""
    kv_cache_util_threshold: float | None = None
    """Share of the KV cache in use from which it is, 0..1."""
    running_threshold: float | None = None
    """Requests in its batch from which it is."""

    def __post_init__(self) -> None:
        """Refuse limits that everybody is over."""
        for name, field in zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True):
            limit = getattr(self, field)
            if limit is not None and not limit > 0:
                raise ValueError(f"{name} is {limit}; it must be above 0")


class FirstAvailableParameters(Parameters, frozen=True):
    """The order, and what is saturated."""

    classes: tuple[str, ...] = ()
    """Names of AcceleratorClasses, or of models such as `h100`, the first choice first; empty for all, in the order in
    which the pool's endpoints bring them."""
    queue_depth_threshold: float = 5.0
    """Requests waiting from which an endpoint is saturated."""
    kv_cache_util_threshold: float = 0.8
    """Share of the KV cache in use from which it is, 0..1."""
    running_threshold: float | None = None
    """Requests in its batch from which it is; any number is fine without it."""
    limits: Mapping[str, ClassLimits] = msgspec.field(default_factory=dict)
    """Other thresholds for some classes, or else for models such as `t4`, by name."""

    def __post_init__(self) -> None:
        """Refuse what cannot be told apart, and limits that everybody is over."""
        for what, names in (("classes", self.classes), ("limits", tuple(self.limits))):
            lower = [name.lower() for name in names]
            twice = next((name for name in names if not name or lower.count(name.lower()) > 1), None)
            if twice is not None:
                raise ValueError(f"{what} names {twice!r} twice; keep one" if twice else f"{what} holds an empty name")
        ClassLimits(
            queue_depth_threshold=self.queue_depth_threshold,
            kv_cache_util_threshold=self.kv_cache_util_threshold,
            running_threshold=self.running_threshold,
        )


class FirstAvailableScorer(Scorer[FirstAvailableParameters]):
    """`1 - i / n` for the endpoints of the i-th of the n classes that are available, counted from 0.

    A class is available where one of its candidates is ready and not saturated, which is at its threshold or above
    it; an endpoint that has not reported is not. Saturated endpoints, those that are draining or blocked, and those
    of no class in the order get 0. An endpoint of several classes counts for the first of them in the order.
    """

    plugin_type = "first-available-scorer"
    category = Category.BALANCE
    reads = (ACCELERATOR, WAITING, KV_USAGE)
    may_read = (RUNNING,)

    def __init__(
        self, parameters: FirstAvailableParameters | None = None, *, name: str = "", clock: Clock | None = None
    ) -> None:
        super().__init__(parameters, name=name, clock=clock)
        self._order = {name.lower(): place for place, name in enumerate(self.parameters.classes)}
        self._limits = {name.lower(): limits for name, limits in self.parameters.limits.items()}

    @property
    def accelerator_names(self) -> Sequence[str]:
        return (*self.parameters.classes, *self.parameters.limits)

    def score(self, request: Request, candidates: Candidates) -> Floats:  # noqa: ARG002
        places = self._places(candidates)
        usable = (places != _UNLISTED) & tag_mask(candidates, _is_usable) & ~self._saturated(candidates)
        classes = np.unique(places[usable])
        scores = 1.0 - np.searchsorted(classes, places) / max(len(classes), 1)
        return np.where(usable, scores, 0.0)

    def _places(self, candidates: Candidates) -> Positions:
        """Return the place of each candidate's class in the order."""
        return candidates.snapshot.records(ACCELERATOR).derive(self._places_of)[candidates.slots]

    def _places_of(self, tags: tuple[AcceleratorTag, ...]) -> Positions:
        order = self._order or _order_of_appearance(tags)
        names = [names_of(tag) if self._order else names_of(tag)[:1] for tag in tags]
        places = [min((order[name] for name in of_tag if name in order), default=_UNLISTED) for of_tag in names]
        return np.array(places, dtype=np.intp)

    def _saturated(self, candidates: Candidates) -> Mask:
        """Return true for each candidate at one of its limits; what is not known is under them."""
        numbers = np.array([candidates.waiting, candidates.kv_usage, candidates.running])
        saturated: Mask = np.any(numbers >= self._thresholds(candidates), axis=0)
        return saturated

    def _thresholds(self, candidates: Candidates) -> Floats:
        """Return three rows: the limits of each candidate's queue, KV cache and batch."""
        return candidates.snapshot.records(ACCELERATOR).derive(self._thresholds_of)[:, candidates.slots]

    def _thresholds_of(self, tags: tuple[AcceleratorTag, ...]) -> Floats:
        general = (
            self.parameters.queue_depth_threshold,
            self.parameters.kv_cache_util_threshold,
            np.inf if self.parameters.running_threshold is None else self.parameters.running_threshold,
        )
        rows = [self._limits_of(tag, general) for tag in tags]
        return np.array(rows, dtype=np.float64).reshape(len(tags), len(general)).T

    def _limits_of(self, tag: AcceleratorTag, general: tuple[float, ...]) -> list[float]:
        own = entry_for(tag, self._limits) or ClassLimits()
        limits = (own.queue_depth_threshold, own.kv_cache_util_threshold, own.running_threshold)
        return [usual if limit is None else limit for limit, usual in zip(limits, general, strict=True)]


def _is_usable(tag: AcceleratorTag) -> bool:
    return tag.state not in {Routability.DRAINING, Routability.BLOCKED}


def _order_of_appearance(tags: tuple[AcceleratorTag, ...]) -> dict[str, int]:
    order: dict[str, int] = {}
    for tag in tags:
        for name in names_of(tag)[:1]:
            order.setdefault(name, len(order))
    return order
