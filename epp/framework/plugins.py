"""What a plugin author implements: one small abstract class for each role.

A plugin is a class with a `plugin_type`, a role (several are fine) and, if it takes any, a typed parameter struct
named in brackets: `class Mine(Scorer[MyParameters])`. Instances are built once for a configuration and serve
every request on one event loop: a method must not block and must not await.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, ClassVar, Generic, TypeAlias, cast, get_args

import msgspec
import numpy as np
from typing_extensions import TypeVar

from epp.framework.arrays import Floats, Mask, Positions
from epp.framework.candidates import Candidates
from epp.framework.clock import Clock, SystemClock
from epp.framework.inputs import InputState
from epp.framework.request import DataKey, Headers, Request, RequestBody
from epp.framework.result import Aggregate, ProfileResult
from epp.framework.snapshot import Attribute, Column

Datum: TypeAlias = DataKey[Any] | Column | Attribute[Any]
"""Something that plugins read and write: data of one request, or a number or record of every endpoint."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of parameter structs: camelCase in files, unknown keys refused, every field with a default where possible.

    A `__post_init__` that raises ValueError refuses a bad value with that sentence.
    """


class FilterParameters(Parameters, frozen=True):
    """What every filter takes."""

    fallback_on_empty: bool = False
    """Pass the filter over where it would leave nobody, instead of failing its profile."""


P = TypeVar("P", bound=Parameters, default=Parameters)
FP = TypeVar("FP", bound=FilterParameters, default=FilterParameters)


class Stability(StrEnum):
    """What a user may rely on."""

    BETA = "Beta"
    """Names, parameters and defaults stay."""
    ALPHA = "Alpha"
    """They may change; taken only where experimental plugins are allowed."""
    DEPRECATED = "Deprecated"
    """Something else has taken its place; its use is warned of."""


class Plugin(ABC, Generic[P]):
    """Base of all roles."""

    plugin_type: ClassVar[str]
    """The name that configuration files use."""
    stability: ClassVar[Stability] = Stability.BETA
    parameters_type: ClassVar[type[Parameters]] = Parameters
    """Taken from the brackets of the role."""
    reads: tuple[Datum, ...] = ()
    """What this plugin cannot do without: whoever produces it by default is added where nobody else does."""
    may_read: tuple[Datum, ...] = ()
    """What this plugin uses where it is there."""
    writes: tuple[Datum, ...] = ()
    """What this plugin publishes: request data of a producer, columns and attributes of an extractor."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Find the parameter struct among the brackets of the bases."""
        super().__init_subclass__(**kwargs)
        for base in cls.__dict__.get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Parameters):
                    cls.parameters_type = argument

    def __init__(self, parameters: P | None = None, *, name: str = "", clock: Clock | None = None) -> None:
        self.parameters: P = parameters if parameters is not None else cast("P", self.parameters_type())
        self.name = name or self.plugin_type
        self.clock: Clock = clock or SystemClock()

    @property
    def accelerator_names(self) -> Sequence[str]:
        """Classes, or models, of accelerators that the parameters name, so that a misspelt one can be told of."""
        return ()

    @property
    def references(self) -> Mapping[str, str]:
        """Names of other plugins that this one calls, by the parameter that names them."""
        return {}

    def connect(self, plugins: Mapping[str, "Plugin[Any]"]) -> None:
        """Take the plugins referred to, by the same parameters; raises ValueError for one of the wrong role.

        Called once, before any request.
        """

    @property
    def warnings(self) -> Sequence[str]:
        """What the author of the configuration should know of these parameters: deprecated ones, say."""
        return ()

    @property
    def inputs(self) -> InputState:
        """Files that the plugin follows, and what of them is not in effect: shown by `/healthz` and metrics.

        Read from any thread.
        """
        return InputState()


class Filter(Plugin[FP]):
    """Says which candidates may serve the request."""

    parameters_type: ClassVar[type[Parameters]] = FilterParameters
    may_empty: bool = True
    """Whether it can leave nobody, other than by a candidate set that was empty already."""

    @abstractmethod
    def filter(self, request: Request, candidates: Candidates) -> Mask:
        """Return true for each candidate that may stay."""


class Category(StrEnum):
    """What a scorer pulls towards."""

    AFFINITY = "Affinity"
    """Towards endpoints that hold something the request needs."""
    DISTRIBUTION = "Distribution"
    """Towards endpoints with less to do."""
    BALANCE = "Balance"
    """Both at once."""


class Scorer(Plugin[P]):
    """Says how well each candidate suits the request."""

    category: ClassVar[Category] = Category.DISTRIBUTION

    @abstractmethod
    def score(self, request: Request, candidates: Candidates) -> Floats:
        """Return one score in [0, 1] for each candidate, 1 the best.

        What lies outside is clamped; NaN and infinite count as 0 and are reported.
        """


Draw: TypeAlias = Callable[[], np.random.Generator]
"""Makes the generator of one profile run, seeded by the request id: the same request draws the same numbers."""


class Picker(Plugin[P]):
    """Chooses among the scored candidates."""

    @abstractmethod
    def pick(self, request: Request, candidates: Candidates, totals: Floats, draw: Draw) -> Positions:
        """Return the positions chosen, best first; at least one."""


class ProfilePicker(Plugin[P]):
    """Chooses which profiles run next."""

    @abstractmethod
    def pick_profiles(
        self, request: Request, profiles: Sequence[str], results: Mapping[str, ProfileResult | None]
    ) -> Sequence[str]:
        """Return the profiles to run now, given the results so far; none ends the scheduling."""

    def check_profiles(self, profiles: Sequence[str]) -> Sequence[str]:  # noqa: ARG002
        """Return what the author of the configuration should know of its profiles, all of which are given by name.

        Raises ValueError where no request could be served. Called once, after `connect` and before any request.
        """
        return ()


class Aggregator(Plugin[P]):
    """Turns the results of all profiles into the one that the gateway gets."""

    @abstractmethod
    def aggregate(self, request: Request, results: Mapping[str, ProfileResult | None]) -> Aggregate | None:
        """Name the primary profile; None when no usable result is among them."""


class Decider(Plugin[P]):
    """Says whether a stage of a disaggregated request is worth a leg of its own."""

    @abstractmethod
    def decide(self, request: Request, decode: ProfileResult | None) -> bool:
        """Return true for a leg; `decode` is the decode leg where that was chosen already."""


class Parser(Plugin[P]):
    """Reads request bodies of one API, or of several that belong together."""

    names_model: ClassVar[bool] = True
    """Whether a body without a model is refused."""

    @property
    @abstractmethod
    def suffixes(self) -> tuple[str, ...]:
        """What it claims: path suffixes of whole segments, or a whole path where one starts with a slash.

        A parser that claims nothing is the fallback: it gets the paths that no other one claims.
        """

    @abstractmethod
    def parse(self, suffix: str, headers: Headers, body: bytes) -> RequestBody:
        """Return what routing needs; raises MalformedBodyError with a sentence for the caller.

        `suffix` is the claim that matched, empty for the fallback.
        """
