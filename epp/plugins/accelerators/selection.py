"""Works out which accelerators may serve a request, from layers of configuration and the request's headers."""

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import Literal

import msgspec

from epp.framework import ACCELERATOR_SELECTION, Admitter, Candidates, DataKey, Parameters, Producer, Request
from epp.framework.accelerator_requirements import SelectionParameters
from epp.framework.accelerator_selection import Refusal, Selection, Selections, Tightened, combined, tightened
from epp.framework.errors import BadRequestError
from epp.framework.headers import ACCELERATOR_PREFIX
from epp.plugins.accelerators.headers import header_of, read_wishes


class SelectionLayer(SelectionParameters, frozen=True):
    """One layer of bounds and preferences: the parameters of `accelerator-filter`, but for what becomes of unknowns."""

    def __post_init__(self) -> None:
        """Refuse what only a filter can do."""
        super().__post_init__()
        if self.fallback_on_empty:
            raise ValueError("fallbackOnEmpty is for filters: set it on accelerator-filter")


class AcceleratorSelectionParameters(Parameters, frozen=True):
    """The layers, from the lowest to the highest."""

    defaults: SelectionLayer = SelectionLayer()
    """What holds for all requests: bounds and preferences, as `accelerator-filter` takes them."""
    models: dict[str, SelectionLayer] = msgspec.field(default_factory=dict)
    """What holds for requests for a model, by its name or by a pattern such as `llama-*`. A name goes before patterns,
    the first pattern that matches before the others."""
    components: dict[str, SelectionLayer] = msgspec.field(default_factory=dict)
    """What holds in a scheduling profile, by its name: `prefill`, `decode`."""
    allow_request_overrides: bool = False
    """Whether requests may ask for accelerators in headers `x-epp-accelerator-*`, within the bounds of the layers."""
    request_overrides: Literal["strict", "lenient"] = "strict"
    """What becomes of a header that cannot be read or asks for what the bounds do not allow: `strict` refuses the
    request with status 400, `lenient` ignores the header."""


class _Layers(msgspec.Struct, frozen=True):
    """What the configuration makes of the requests for one model, or for all the others."""

    default: Selection
    by_profile: dict[str, Selection]


class AcceleratorSelectionProducer(Producer[AcceleratorSelectionParameters], Admitter[AcceleratorSelectionParameters]):
    """Publishes bounds and preferences for accelerators, one selection for each profile.

    Layers go from `defaults` over `models` and `components` to the request's headers. What a higher layer lists or
    names replaces what the lower one does; exclusions add up, and of minimums and caps the stricter one counts. Headers
    only ever tighten: of lists, what they and the layers have in common stays.

    The headers are `x-epp-accelerator-` and `class`, `exclude-class`, `vendor`, `family`, `model`, `kind`, `resource`,
    `features`, `min-memory`, `max-memory`, `min-total-memory`, `min-compute-capability`, `max-cost-per-hour`,
    `max-cost-per-million-tokens`, `mig-profile`, `exclude-mig-profile`, `min-compute-slices`, `whole-device`,
    `policy`, `precisions` or `preference`, lists with commas. They never reach the model server. One producer of this
    type is enough: it goes by no name.
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
            raise BadRequestError("; ".join(problems))

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
    """Return a sentence for each wish that the bounds of some profile do not allow."""
    sentences = {_sentence(profile, refusal): None for profile, found in profiles.items() for refusal in found.refused}
    return tuple(sentences)


def _sentence(profile: str, refusal: Refusal) -> str:
    where = f" in profile {profile!r}" if profile else ""
    return (
        f"header {header_of(refusal.field)!r} asks for {', '.join(refusal.wished)}, "
        f"which is not allowed{where}: use {', '.join(refusal.allowed)}"
    )
