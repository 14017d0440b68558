# SPDX-License-Identifier: Apache-2.0
"""Objectives and conditions of tuning, and the search space of a configuration."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from epp.config import LoadedConfig
from epp.framework import ConfigurationError, Filter, Picker, Scorer, Tunable
from epp.framework.plugin import Plugin
from epp.framework.quantities import parse_duration
from epp.framework.registry import Registry
from epp.framework.suggestions import hint_at
from epp.lab.replay.comparison import figures
from epp.lab.replay.outcome import Outcome, Status
from epp.lab.replay.summary import Targets

_CONDITION = re.compile(r"(?P<figure>[a-z0-9 -]+?)\s*(?P<sign><=|>=)\s*(?P<limit>\S+)")
_UNANSWERED = 1e6
"""Seconds in place of an infinite quantile; up to twice as many, by the share of requests without an answer."""
_FARTHEST = 1e9
LEFT_OUT = "none"
"""The choice that leaves a plugin out."""
_WEIGHTS = Tunable(0.0, 10.0)
_MOST_CHOICES = 16
Value: TypeAlias = float | int | str
Path: TypeAlias = tuple[str | int, ...]


class Figure(NamedTuple):
    name: str
    key: str
    """Name among the `figures` of an outcome."""
    unit: Literal["s", "$", "%"]
    is_better_higher: bool = False

    def value(self, found: Mapping[str, float]) -> float:
        """Return the value among figures; NaN if unknown."""
        return found.get(self.key, math.nan)

    def loss(self, outcome: Outcome, targets: Targets) -> float:
        """Return the figure with its sign chosen so that lower is better; finite if known."""
        value = self.value(figures(outcome, targets))
        if math.isinf(value):
            return _UNANSWERED * (1 + float((outcome.columns.status != Status.SERVED).mean()))
        return -value if self.is_better_higher else value

    def of_loss(self, loss: float) -> float:
        return -loss if self.is_better_higher else loss

    def text(self, value: float | None) -> str:
        if value is None or math.isnan(value):
            return "unknown"
        if self.unit == "%":
            return f"{value:.1%}"
        if self.unit == "$":
            return f"${value:.4g}"
        if abs(value) >= _UNANSWERED:
            return "no answer"
        return f"{value:.3f} s" if abs(value) >= 1 else f"{value * 1000:.1f} ms"


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        each.name: each
        for each in (
            *(
                Figure(f"{quantile}-{short}", f"{time}.{quantile}", "s")
                for short, time in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "total"))
                for quantile in ("p50", "p90", "p99")
            ),
            Figure("goodput", "goodput", "%", is_better_higher=True),
            Figure("dollars", "dollars_per_1000_requests", "$"),
            Figure("dollars-per-million-tokens", "dollars_per_million_tokens", "$"),
            Figure("cached", "cached_share", "%", is_better_higher=True),
            Figure("fairness", "fairness", "%", is_better_higher=True),
            Figure("refused", "refused", "%"),
            Figure("timed-out", "timed_out", "%"),
            Figure("regret", "mean_regret", "s"),
        )
    }
)
"""Figures by name: time to the first token (ttft), between tokens (tpot), to the last token (e2e), and others."""


class Condition(NamedTuple):
    text: str
    figure: Figure
    limit: float
    is_least: bool

    def excess(self, outcome: Outcome, targets: Targets) -> float:
        """Return the distance of the figure beyond the limit; 0 or less if the condition holds."""
        value = self.figure.value(figures(outcome, targets))
        if not math.isfinite(value):
            return _FARTHEST
        return self.limit - value if self.is_least else value - self.limit


def figure(name: str) -> Figure:
    """Return a figure by name, in which spaces may replace hyphens; raises ConfigurationError."""
    found = FIGURES.get("-".join(name.lower().split()))
    if found is None:
        raise ConfigurationError(
            f"there is no figure {name!r}; {hint_at(name, FIGURES)}", remedy=f"choose one of {', '.join(FIGURES)}"
        )
    return found


def condition(text: str) -> Condition:
    """Return a condition such as `p99 ttft <= 1s` or `goodput >= 95%`; raises ConfigurationError."""
    found = _CONDITION.fullmatch(text.strip())
    if found is None:
        raise ConfigurationError(f"--subject-to {text!r}: write a figure, <= or >=, and a limit: p99 ttft <= 1s")
    limited = figure(found["figure"])
    written = found["limit"]
    try:
        match limited.unit:
            case "%":
                limit = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
            case "$":
                limit = float(written.removeprefix("$"))
            case "s":
                limit = parse_duration(written)
    except ValueError as error:
        raise ConfigurationError(f"--subject-to {text!r}: the limit of {limited.name} is not valid: {error}") from error
    return Condition(text.strip(), limited, limit, found["sign"] == ">=")


SIDE_EFFECTS: Sequence[Figure] = tuple(
    FIGURES[name]
    for name in ("p50-ttft", "p90-ttft", "p99-ttft", "p90-tpot", "p90-e2e", "goodput", "dollars", "refused", "cached")
)
"""Figures to show in addition to the objectives."""


class Dimension(NamedTuple):
    name: str
    """Unique, such as `work-seconds-scorer.outputTokens`."""
    path: Path
    """Path in the document."""
    current: Value
    """Current value, clipped to the range."""
    range: Tunable | None = None
    is_int: bool = False
    choices: tuple[str, ...] = ()
    """Plugin types to choose from, current type first; empty for a number."""


class SearchSpace:
    def __init__(self, config: LoadedConfig, registry: Registry, also: Sequence[str] = ()) -> None:
        """`also` has choices such as `queue-scorer=load-aware-scorer,none`; raises ConfigurationError."""
        if config.problems:
            raise ConfigurationError(str(config.problems[0]))
        document: Any = None if config.document is None else config.document.content
        self.content: dict[str, Any] = deepcopy(document or {})
        self._registry = registry
        if not self.content.get("schedulingProfiles"):
            roles = (Filter, Scorer, Picker)
            refs = [{"pluginRef": name} for _, name, cls in self._plugins() if issubclass(cls, roles)]
            self.content["schedulingProfiles"] = [{"name": "default", "plugins": refs}]
        self._choices = tuple(self._choice(each) for each in also)
        chosen = {each.path[1] for each in self._choices}
        self.dimensions = (*self._choices, *self._parameters(chosen), *self._weights())
        if not self.dimensions:
            raise ConfigurationError(
                f"{config.origin}: nothing to tune: no weighted scorer and no parameter with a range",
                remedy="`epp plugins TYPE` shows which parameters are tuned; --also adds choices between plugins",
            )

    @property
    def current(self) -> dict[str, Value]:
        return {each.name: each.current for each in self.dimensions}

    def with_values(self, values: Mapping[str, Value]) -> dict[str, Any]:
        """Return the document with new values; dimensions without one keep the current value."""
        content = deepcopy(self.content)
        for dimension in self.dimensions:
            if dimension.name in values and not dimension.choices:
                _put(content, dimension.path, values[dimension.name])
        for dimension in self._choices:
            self._replace(content, dimension, str(values.get(dimension.name, dimension.current)))
        return content

    def _plugins(self) -> Iterator[tuple[int, str, type[Plugin[Any]]]]:
        """Yield index, instance name and class of each declared plugin that is installed."""
        for index, spec in enumerate(self.content.get("plugins") or ()):
            yield index, spec.get("name") or spec["type"], self._registry.find(spec["type"])

    def _parameters(self, without: set[str | int]) -> Iterator[Dimension]:
        for index, name, cls in self._plugins():
            given = self.content["plugins"][index].get("parameters") or {}
            if index not in without:
                yield from _tunable(cls.parameters_type, given, name, ("plugins", index, "parameters"))

    def _weights(self) -> Iterator[Dimension]:
        """Yield the weights of scorers in each profile with several of them: only their proportions matter."""
        classes = {name: cls for _, name, cls in self._plugins()}
        profiles = self.content.get("schedulingProfiles") or ()
        for number, profile in enumerate(profiles):
            refs = list(enumerate(profile.get("plugins") or ()))
            scorers = [(at, ref) for at, ref in refs if issubclass(classes.get(ref["pluginRef"], Plugin), Scorer)]
            where = f"{profile['name']}." if len(profiles) > 1 else ""
            for at, ref in scorers if len(scorers) > 1 else ():
                weight = ref.get("weight")
                current = min(max(1.0 if weight is None else float(weight), _WEIGHTS.low), _WEIGHTS.high)
                path = ("schedulingProfiles", number, "plugins", at, "weight")
                yield Dimension(f"{where}{ref['pluginRef']}.weight", path, current, _WEIGHTS)

    def _choice(self, text: str) -> Dimension:
        name, equals, listed = text.partition("=")
        types = tuple(dict.fromkeys(filter(None, map(str.strip, listed.split(",")))))
        place = f"--also {text}"
        if not equals or not types or len(types) > _MOST_CHOICES:
            raise ConfigurationError(f"{place}: write NAME=TYPE,TYPE with up to {_MOST_CHOICES} plugin types")
        named = {found: (index, cls) for index, found, cls in self._plugins()}
        if name not in named:
            raise ConfigurationError(f"{place}: the configuration has no plugin {name!r}; {hint_at(name, named)}")
        index, cls = named[name]
        for kind in types:
            if kind != LEFT_OUT:
                self._registry.find(kind)
        present = cls.plugin_type
        return Dimension(name, ("plugins", index), present, choices=tuple(dict.fromkeys((present, *types))))

    def _replace(self, content: dict[str, Any], dimension: Dimension, kind: str) -> None:
        """Replace a plugin with one of another type, or leave it out."""
        index = dimension.path[1]
        spec = content["plugins"][index]
        if kind == dimension.current:
            return
        if kind != LEFT_OUT:
            content["plugins"][index] = {"type": kind, "name": dimension.name}
            return
        content["plugins"] = [each for each in content["plugins"] if each is not spec]
        for profile in content.get("schedulingProfiles") or ():
            profile["plugins"] = [ref for ref in profile.get("plugins") or () if ref["pluginRef"] != dimension.name]


def _tunable(cls: type[msgspec.Struct], given: Mapping[str, Any], name: str, path: Path) -> Iterator[Dimension]:
    hints = get_type_hints(cls, include_extras=True)
    for field in msgspec.structs.fields(cls):
        annotation = hints[field.name]
        found = [each for each in get_args(annotation) if isinstance(each, Tunable)]
        if get_origin(annotation) is Annotated and found:
            value = given.get(field.encode_name, field.default)
            clipped = min(max(float(value), found[0].low), found[0].high)
            is_int = get_args(annotation)[0] is int
            current: Value = int(clipped) if is_int else clipped
            yield Dimension(f"{name}.{field.encode_name}", (*path, field.encode_name), current, found[0], is_int)


def _put(content: dict[str, Any], path: Path, value: Value) -> None:
    part: Any = content
    for key in path[:-1]:
        if isinstance(part, dict) and part.get(key) is None:
            part[key] = {}
        part = part[key]
    part[path[-1]] = value
