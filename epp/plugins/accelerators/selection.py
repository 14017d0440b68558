# SPDX-License-Identifier: Apache-2.0
"""Determines the accelerators that may serve a request, from layers of configuration and request headers."""

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Literal

import msgspec

from epp.framework import ACCELERATOR_SELECTION, Admitter, Candidates, DataKey, Parameters, Producer, Request
from epp.framework.accelerators.requirements import SelectionParameters
from epp.framework.accelerators.selection import Refusal, Selection, Selections, Tightened, combined, tightened
from epp.framework.errors import BadRequestError
from epp.framework.headers import ACCELERATOR_PREFIX
from epp.framework.printable import printable
from epp.plugins.accelerators.headers import header_of, read_wishes

_MOST_PROBLEMS = 5
"""Of one request, told to its client."""


class SelectionLayer(SelectionParameters, frozen=True):
    """One layer of bounds and preferences: the parameters of `accelerator-filter` without `onUnknown` and `cel`."""

    def __post_init__(self) -> None:
        """Refuse the parameter of filters."""
        super().__post_init__()
        if self.fallback_on_empty:
            raise ValueError("fallbackOnEmpty is for filters: set it on accelerator-filter")


class AcceleratorSelectionParameters(Parameters, frozen=True):
    """Layers of bounds and preferences, lowest first."""

    defaults: SelectionLayer = SelectionLayer()
    """Bounds and preferences of all requests, as in `accelerator-filter`."""
    models: dict[str, SelectionLayer] = msgspec.field(default_factory=dict)
    """Bounds and preferences by model, or by a pattern such as `llama-*`. An exact name precedes patterns; the first
    matching pattern precedes the others."""
    components: dict[str, SelectionLayer] = msgspec.field(default_factory=dict)
    """Bounds and preferences by scheduling profile, such as `prefill` and `decode`."""
    allow_request_overrides: bool = False
    """Accept headers `x-epp-accelerator-*`, within the bounds of the layers."""
    request_overrides: Literal["strict", "lenient"] = "strict"
    """How to treat malformed headers and those beyond the bounds: `strict` refuses the request with status 400,
    `lenient` ignores the header."""


class _Layers(msgspec.Struct, frozen=True):
    """Selections of requests for one model, or for all others."""

    default: Selection
    by_profile: dict[str, Selection]


class AcceleratorSelectionProducer(Producer[AcceleratorSelectionParameters], Admitter[AcceleratorSelectionParameters]):
    """Publishes bounds and preferences for accelerators, one selection for each profile.

    The layers are `defaults`, `models`, `components` and the request's headers, lowest first. A list or name in a
    higher layer replaces that of the lower one; exclusions are united; of minimums and caps the stricter one counts.
    Headers can only tighten: lists are intersected with those of the layers.

    The headers are `x-epp-accelerator-` and `class`, `exclude-class`, `vendor`, `family`, `model`, `kind`, `resource`,
    `features`, `min-memory`, `max-memory`, `min-total-memory`, `min-compute-capability`, `max-cost-per-hour`,
    `max-cost-per-million-tokens`, `mig-profile`, `exclude-mig-profile`, `min-compute-slices`, `whole-device`,
    `policy`, `precisions` or `preference`, with comma-separated lists. The picker removes
    them from the request. All instances have one output: configure one producer of this type.
    """

    plugin_type = "accelerator-selection-producer"
    writes = (ACCELERATOR_SELECTION,)

    def setup(self) -> None:
        self._problems_key: DataKey[tuple[str, ...]] = DataKey("accelerator-override-problems", producer=self.name)
        defaults = self.parameters.defaults.selection()
        self._general = self._with_components(defaults)
        self._by_model = {
            model: self._with_components(combined(defaults, layer.selection()))
            for model, layer in self.parameters.models.items()
        }
        self._patterns = [(re.compile(translate(model)), layers) for model, layers in self._by_model.items()]

    @property
    def accelerator_names(self) -> Sequence[str]:
        return tuple(
            name
            for layers in (self._general, *self._by_model.values())
            for selection in (layers.default, *layers.by_profile.values())
            for name in (*selection.classes, *sorted(selection.excluded_classes), *selection.models)
        )

    @property
    def without_prices(self) -> str:
        selections = [
            selection
            for layers in (self._general, *self._by_model.values())
            for selection in (layers.default, *layers.by_profile.values())
        ]
        if any(selection.caps_cost for selection in selections):
            return "filters drop all endpoints where these bounds cap the price, unless onUnknown keeps them"
        by_price = any(selection.policy == "cheapest" for selection in selections)
        return "the policy Cheapest is no preference" if by_price else ""

    def produce(self, request: Request, candidates: Candidates) -> None:  # noqa: ARG002
        layers = self._layers(request.model)
        asked = any(name.startswith(ACCELERATOR_PREFIX) for name in request.headers)
        if not (asked and self.parameters.allow_request_overrides):
            request.put(ACCELERATOR_SELECTION, Selections(layers.default, layers.by_profile))
            return
        wish, problems = read_wishes(request.headers)
        default = tightened(layers.default, wish)
        profiles = {profile: tightened(selection, wish) for profile, selection in layers.by_profile.items()}
        problems += _refusals({"": default, **profiles})
        if problems:
            request.put(self._problems_key, problems)
        by_profile = {profile: found.selection for profile, found in profiles.items()}
        request.put(ACCELERATOR_SELECTION, Selections(default.selection, by_profile, problems))

    def admit(self, request: Request, candidates: Candidates) -> None:  # noqa: ARG002
        problems = request.get(self._problems_key)
        if problems and self.parameters.request_overrides == "strict":
            raise BadRequestError("; ".join(problems[:_MOST_PROBLEMS]))

    def _with_components(self, selection: Selection) -> _Layers:
        components = self.parameters.components
        return _Layers(
            selection, {profile: combined(selection, layer.selection()) for profile, layer in components.items()}
        )

    def _layers(self, model: str) -> _Layers:
        found = self._by_model.get(model)
        if found is None:
            found = next((layers for pattern, layers in self._patterns if pattern.match(model)), self._general)
        return found


def _refusals(profiles: dict[str, Tightened]) -> tuple[str, ...]:
    """Return an error for each value that the bounds of a profile do not allow."""
    sentences = {_sentence(profile, refusal): None for profile, found in profiles.items() for refusal in found.refused}
    return tuple(sentences)


def _sentence(profile: str, refusal: Refusal) -> str:
    where = f" in profile {profile!r}" if profile else ""
    return (
        f"header {header_of(refusal.field)!r} asks for {printable(', '.join(refusal.wished))}, "
        f"which is not allowed{where}: use {', '.join(refusal.allowed)}"
    )
