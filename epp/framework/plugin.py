# SPDX-License-Identifier: Apache-2.0
"""Base of all plugins: parameters, declared data and roles; the guard that applies the error policy of a role."""

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
"""Something that plugins read and write: data of one request, or a number or record of every endpoint."""


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of parameter structs: camelCase in files, unknown keys refused, every field with a default where possible.

    Limits of single fields are annotations: `Annotated[int, Meta(ge=1)]`, `Literal["a", "b"]`. A `__post_init__` that
    raises ValueError refuses values that do not fit together.
    """


P = TypeVar("P", bound=Parameters, default=Parameters)
R = TypeVar("R", bound="Plugin[Any]")


class Stability(StrEnum):
    """Stability of names, parameters and defaults."""

    BETA = "Beta"
    """Names, parameters and defaults stay."""
    ALPHA = "Alpha"
    """They may change; taken only where experimental plugins are allowed."""
    DEPRECATED = "Deprecated"
    """Replaced by another plugin; its use is warned of."""


class Stage(IntEnum):
    """When plugins run, in this order; data can be read in the stage that writes it and in later ones."""

    BACKGROUND = 0
    """Outside of requests."""
    REQUEST_HEADERS = 1
    PRODUCERS = 2
    ADMISSION = 3
    PROFILE_CHOICE = 4
    CYCLE = 5
    """Once for each profile that runs."""
    PRE_REQUEST = 6
    RESPONSE_HEADERS = 7
    RESPONSE_BODY = 8
    RESPONSE_END = 9


class OnError(StrEnum):
    """Consequence of an exception in a plugin."""

    SKIP = "Skip"
    """Continue without its result."""
    FAIL = "Fail"
    """Fail the profile, or the request outside of profiles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Description of an abstract plugin class; graph, reference, data order and error handling derive from it."""

    title: str
    """Heading in the plugin reference."""
    name: str = ""
    """Extension point in metrics; by default the name of the class."""
    stage: Stage = Stage.BACKGROUND
    hook: bool = False
    """Whether every configured instance runs for every request, without being named in a profile."""
    on_error: OnError = OnError.SKIP
    may_refuse: bool = False
    """Whether a RequestError that it raises is the answer to the client; otherwise it counts as a failure."""


class Plugin(ABC, Generic[P]):
    """Base of all roles.

    An instance is built once for a configuration and serves every request on one event loop: a method must not block.
    """

    plugin_type: ClassVar[str]
    """The name that configuration files use."""
    stability: ClassVar[Stability] = Stability.BETA
    role: ClassVar[Role]
    """Of an abstract role class: `class Scorer(Plugin[P], role=Role(...))`."""
    parameters_type: ClassVar[type[Parameters]] = Parameters
    """Taken from the brackets of the role."""
    reads: tuple[Datum, ...] = ()
    """Required inputs; the default producer of one that no configured plugin writes is added."""
    may_read: tuple[Datum, ...] = ()
    """Optional inputs."""
    writes: tuple[Datum, ...] = ()
    """Outputs: request data of a producer, columns and attributes of an extractor."""
    sets_headers: tuple[str, ...] = ()
    """Request headers, in lower case, that this plugin sets for the endpoint; a client's own are removed.

    Headers that are not listed count as a failure of the plugin; those of an aggregator are dropped.
    """
    metrics: ClassVar[tuple[PluginMetric, ...]] = ()

    def __init_subclass__(cls, role: Role | None = None, **kwargs: object) -> None:
        """Register the role; find the parameter struct among the brackets of the bases."""
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
        """Return the parameters to use beside the plugins declared before; raises ConfigurationError.

        Called for each declared plugin and, with all declared ones, for those that are added because others read what
        they write. The configuration may never take effect.
        """
        return parameters

    @property
    def accelerator_names(self) -> Sequence[str]:
        """Accelerator classes or models that the parameters name, to be checked for spelling."""
        return ()

    @property
    def without_prices(self) -> str:
        """Behaviour of the plugin while no endpoint has a price; empty if it needs none."""
        return ""

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
        """Warnings to the author of the configuration: deprecated parameters, say."""
        return ()

    @property
    def inputs(self) -> InputState:
        """Files that the plugin follows, and their versions that are not in effect; shown by `/healthz` and metrics.

        Read from any thread.
        """
        return InputState()

    @property
    def degraded(self) -> Sequence[str]:
        """Sentences for `/healthz` on what does not work as configured now; a bounded number, read from any thread."""
        return ()

    @property
    def samples(self) -> Sequence[Sample]:
        """Values of `metrics` now, in bounded number; read from any thread."""
        return ()

    @property
    def explanations(self) -> Mapping[str, object]:
        """Why placements chose the clusters that they did, by `namespace/name`; read from any thread."""
        return {}

    def dump_state(self, snapshot: Snapshot) -> object | None:
        """Return the state for `/debug/plugins/state`: plain data for JSON; None for a plugin that has nothing to tell.

        It is bounded, and holds no prompts, credentials or tokens; `snapshot` has the endpoints by slot. Called on the
        event loop, between two requests.
        """
        return None

    def rehearse(self, request: Request, candidates: Candidates) -> None:
        """Run once on made-up data and check the results; raises ResultError for one of the wrong shape or type."""
        for role in roles_of(type(self)):
            role._rehearse(self, request, candidates)  # noqa: SLF001  of these classes

    def _rehearse(self, request: Request, candidates: Candidates) -> None:
        """Rehearse one role; called for each role of the plugin."""


@cache
def roles_of(cls: type[Plugin[Any]]) -> tuple[type[Plugin[Any]], ...]:
    """Return the role classes that a plugin class derives from, in order of declaration."""
    return tuple(role for role in all_roles() if issubclass(cls, role))


_HOMES = tuple(f"epp.framework.{name}" for name in ("roles", "quotas", "datalayer", "flow_control"))
"""The modules of roles, in the order of the plugin reference."""


def all_roles() -> tuple[type[Plugin[Any]], ...]:
    """Return all role classes: by module, whichever was imported first, and in it in order of declaration."""
    return tuple(sorted(_roles_below(Plugin), key=_home))


def _home(role: type[Plugin[Any]]) -> tuple[int, str]:
    name = role.__module__
    return (_HOMES.index(name), "") if name in _HOMES else (len(_HOMES), name)


def _roles_below(cls: type[Plugin[Any]]) -> Iterator[type[Plugin[Any]]]:
    for sub in cls.__subclasses__():
        if "role" in sub.__dict__:
            yield sub
        yield from _roles_below(sub)


T = TypeVar("T")
A = TypeVarTuple("A")


class PluginObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def plugin_failed(self, plugin: str, error: Exception, problem: str) -> None:
        """Record that a plugin raised; `problem` describes the error and where the plugin raised it."""

    def plugin_called(self, role: Role, plugin: Plugin[Any], seconds: float) -> None:
        """Record the duration of a call."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The result of a plugin that raised and may be skipped."""

    problem: str


class Guard:
    """The only place where an error of a plugin is caught while a request is served."""

    def __init__(self, observer: PluginObserver, *, timer: Callable[[], float] = perf_counter) -> None:
        self._observer = observer
        self._called = observer.plugin_called
        self._timer = timer

    def call(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        """Return the method's result, or Failure where the role is skipped on errors.

        Raises PluginFailedError where it is not, and the plugin's own RequestError where the role may refuse.
        """
        started = self._timer()
        try:
            return method(*arguments)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything
            return self._judge(role, plugin, error)
        finally:
            self._called(role, plugin, self._timer() - started)

    def check(self, role: Role, plugin: Plugin[Any], method: Callable[[*A], T], *arguments: *A) -> T | Failure:
        """Do the same for a check of a result; its time does not count for the plugin."""
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
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def profile_started(self, profile: str) -> None:
        """Record that the plugins of a profile are called from now on."""

    def scores_rejected(self, plugin: str, count: int) -> None:
        """Record scores that were NaN or infinite and counted as 0."""

    def scores_clamped(self, plugin: str, count: int) -> None:
        """Record scores that were below 0 or above 1 and counted as these."""
