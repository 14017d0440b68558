# SPDX-License-Identifier: Apache-2.0
"""Base class of plugins: parameters, declared data, roles; and the guard that applies the error policy of a role."""

from abc import ABC
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import cache
from time import perf_counter
from typing import Any, ClassVar, Generic, TypeAlias, TypeVarTuple, cast, get_args

import msgspec
from typing_extensions import TypeVar

from epp.framework.candidates import Candidates
from epp.framework.clock import Clock, SystemClock
from epp.framework.errors import PluginFailedError, RequestError
from epp.framework.messages import described
from epp.framework.plugin_status import InputState, PluginMetric, Sample
from epp.framework.request import DataKey, Request
from epp.framework.snapshot import Attribute, Column, Snapshot

Datum: TypeAlias = DataKey[Any] | Column | Attribute[Any]
"""Data that plugins read and write: of one request, or a number or a record of every endpoint."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of parameter structs. Keys are camelCase in files, and unknown keys are errors.

    Give every field a default if possible. Write limits of single fields as annotations: `Annotated[int, Meta(ge=1)]`,
    `Literal["a", "b"]`. To reject a combination of values, raise ValueError in `__post_init__`.
    """


P = TypeVar("P", bound=Parameters, default=Parameters)
R = TypeVar("R", bound="Plugin[Any]")


class Stability(StrEnum):
    """Stability of names, parameters and defaults."""

    BETA = "Beta"
    """Names, parameters and defaults do not change."""
    ALPHA = "Alpha"
    """Names, parameters and defaults may change; the type requires experimental plugins to be allowed."""
    DEPRECATED = "Deprecated"
    """Replaced by another plugin; its use causes a warning."""


class Stage(IntEnum):
    """Stages of a request, in order. Data can be read in the stage that writes it and in later stages."""

    BACKGROUND = 0
    """Outside of requests."""
    REQUEST_HEADERS = 1
    PRODUCERS = 2
    ADMISSION = 3
    PROFILE_CHOICE = 4
    CYCLE = 5
    """Filters, scorers and picker; once for each profile that runs."""
    PRE_REQUEST = 6
    RESPONSE_HEADERS = 7
    RESPONSE_BODY = 8
    RESPONSE_END = 9


class OnError(StrEnum):
    """Consequence of an exception in a plugin."""

    SKIP = "Skip"
    """Continue without its result."""
    FAIL = "Fail"
    """Fail the profile; outside of profiles, fail the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Description of an abstract plugin class; graph, reference, data order and error handling derive from it."""

    title: str
    """Heading in the plugin reference."""
    name: str = ""
    """Name of the extension point in metrics; by default that of the class."""
    stage: Stage = Stage.BACKGROUND
    hook: bool = False
    """Whether every configured instance runs for every request, even if no profile names it."""
    on_error: OnError = OnError.SKIP
    may_refuse: bool = False
    """Whether a RequestError of the plugin is returned to the client; otherwise it is a failure of the plugin."""


class Plugin(ABC, Generic[P]):
    """Base of all roles.

    An instance is built once for a configuration and serves all requests on one event loop, so methods must not block.
    """

    plugin_type: ClassVar[str]
    """Name in configuration files."""
    stability: ClassVar[Stability] = Stability.BETA
    role: ClassVar[Role]
    """Role of an abstract class: `class Scorer(Plugin[P], role=Role(...))`."""
    parameters_type: ClassVar[type[Parameters]] = Parameters
    """Type argument of the role, as in `Scorer[MyParameters]`."""
    reads: tuple[Datum, ...] = ()
    """Required inputs. If no configured plugin writes one of them, its default producer is added."""
    may_read: tuple[Datum, ...] = ()
    """Optional inputs."""
    writes: tuple[Datum, ...] = ()
    """Outputs: request data of a producer, columns and attributes of an extractor."""
    sets_headers: tuple[str, ...] = ()
    """Request headers, in lower case, that this plugin sets for the endpoint; they are removed from client requests.

    Other headers are a failure of the plugin; other headers of an aggregator are dropped.
    """
    metrics: ClassVar[tuple[PluginMetric, ...]] = ()

    def __init_subclass__(cls, role: Role | None = None, **kwargs: object) -> None:
        """Register the role; find the parameter struct among the type arguments of the bases."""
        super().__init_subclass__(**kwargs)
        if role is not None:
            cls.role = replace(role, name=role.name or cls.__name__)
        for base in cls.__dict__.get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Parameters):
                    cls.parameters_type = argument

    def __init__(self, parameters: P | None = None, *, name: str = "", clock: Clock | None = None) -> None:
        self.parameters: P = parameters if parameters is not None else cast("P", self.parameters_type())
        self.name = name or self.plugin_type
        self.clock: Clock = clock or SystemClock()
        self.setup()

    def setup(self) -> None:
        """Prepare state from `self.parameters`, `self.name` and `self.clock`; raises ValueError for bad parameters."""

    @classmethod
    def parameters_beside(cls, parameters: P, declared: Sequence["Plugin[Any]"]) -> P:  # noqa: ARG003  for overrides
        """Return the parameters to use, given the plugins declared before this one; raises ConfigurationError.

        Called for each declared plugin, and with all declared plugins for each default producer that is added. The
        configuration may never take effect.
        """
        return parameters

    @property
    def accelerator_names(self) -> Sequence[str]:
        """Accelerator classes or models in the parameters, whose spelling is checked."""
        return ()

    @property
    def without_prices(self) -> str:
        """Behaviour of the plugin while no endpoint has a price; empty if it needs no prices."""
        return ""

    @property
    def references(self) -> Mapping[str, str]:
        """Names of other plugins that this plugin calls, by the parameter that names them."""
        return {}

    def connect(self, plugins: Mapping[str, "Plugin[Any]"]) -> None:
        """Store the plugins in `references`, by parameter; raises ValueError for a plugin of the wrong role.

        Called once, before any request.
        """

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for the author of the configuration, such as deprecated parameters."""
        return ()

    @property
    def inputs(self) -> InputState:
        """State of the files that the plugin follows, for `/healthz` and metrics; must be thread-safe."""
        return InputState()

    @property
    def degraded(self) -> Sequence[str]:
        """Sentences for `/healthz` about failures at the moment, in bounded number; must be thread-safe."""
        return ()

    @property
    def samples(self) -> Sequence[Sample]:
        """Current values of `metrics`, in bounded number; must be thread-safe."""
        return ()

    @property
    def explanations(self) -> Mapping[str, object]:
        """Reasons for the clusters that placements chose, by `namespace/name`; must be thread-safe."""
        return {}

    def dump_state(self, snapshot: Snapshot) -> object | None:
        """Return the state for `/debug/plugins/state` as plain data for JSON; None if the plugin has no state.

        Its size is bounded, and it contains no prompts, credentials or tokens. `snapshot` has the endpoints by slot.
        Called on the event loop, between two requests.
        """
        return None

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Run once on made-up data and check the results; raises ResultError for a wrong shape or type."""
        for role in roles_of(type(self)):
            role._rehearse(self, request, candidates)  # noqa: SLF001  a method of this class

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        """Rehearse one role of the plugin."""


@cache
def roles_of(cls: type[Plugin[Any]]) -> tuple[type[Plugin[Any]], ...]:
    """Return the role classes that a plugin class derives from, in order of declaration."""
    return tuple(role for role in all_roles() if issubclass(cls, role))


_MODULES = tuple(f"epp.framework.{name}" for name in ("roles", "quotas", "datalayer", "flow_control"))
"""Modules with roles, in the order of the plugin reference; other modules follow by name."""


def all_roles() -> tuple[type[Plugin[Any]], ...]:
    """Return all role classes by module, independent of the order of imports, and then in order of declaration."""

    def module(role: type[Plugin[Any]]) -> tuple[int, str]:
        name = role.__module__
        return (_MODULES.index(name), "") if name in _MODULES else (len(_MODULES), name)

    return tuple(sorted(_roles_below(Plugin), key=module))


def _roles_below(cls: type[Plugin[Any]]) -> Iterator[type[Plugin[Any]]]:
    for sub in cls.__subclasses__():
        if "role" in sub.__dict__:
            yield sub
        yield from _roles_below(sub)


T = TypeVar("T")
A = TypeVarTuple("A")


class PluginObserver:
    """Callbacks for calls of plugins, without effect by default."""

    __slots__ = ()

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        """Record that a plugin raised; `problem` describes the error and where the plugin raised it."""

    def plugin_called(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record the duration of a call."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Result of a failed plugin that may be skipped."""

    problem: str


class Guard:
    """Calls plugins while a request is served, and catches all of their errors."""

    def __init__(self, observer: PluginObserver, *, timer: Callable[[], float] = perf_counter) -> None:
        self._observer = observer
        self._called = observer.plugin_called
        self._timer = timer

    def call(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        """Return the result of the method, or a Failure if the role is skipped on errors.

        Otherwise an error raises PluginFailedError, or the RequestError of the plugin itself if the role may refuse.
        """
        started = self._timer()
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            return self._judge(role, plugin, error)
        finally:
            self._called(role, plugin, self._timer() - started)

    def check(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        """Do the same for the check of a result, without measuring its time."""
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001  the same
            return self._judge(role, plugin, error)

    async def wait(self, role: Role, plugin: Plugin[Any], awaited: Awaitable[T]) -> T | Failure:
        """Do the same for an awaitable that a plugin returned."""
        try:
            return await awaited
        except Exception as error:  # noqa: BLE001  the same
            return self._judge(role, plugin, error)

    def _judge(self, role: Role, plugin: Plugin[Any], error: Exception) -> Failure:
        if role.may_refuse and isinstance(error, RequestError):
            raise error
        problem = described(error, type(plugin))
        self._observer.plugin_failed(plugin.name, error, problem)
        if role.on_error is OnError.FAIL:
            raise PluginFailedError(plugin.name, problem) from error
        return Failure(problem)


class SchedulingObserver(PluginObserver):
    """Callbacks for calls of plugins in profiles, without effect by default."""

    __slots__ = ()

    def profile_started(self, profile: str) -> None:
        """Record that the next calls are those of this profile."""

    def scores_rejected(self, plugin: str, count: int) -> None:
        """Record scores that were NaN or infinite and were replaced by 0."""

    def scores_clamped(self, plugin: str, count: int) -> None:
        """Record scores that were below 0 or above 1 and were clamped."""
