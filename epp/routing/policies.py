# SPDX-License-Identifier: Apache-2.0
"""Policies of a pool from InferenceObjective and InferenceModelRewrite objects in files or in the cluster."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias, TypeVar

import structlog

from epp.framework.clock import Clock
from epp.framework.plugin_status import InputProblem, InputState
from epp.kube.cluster import Cluster
from epp.kube.objects.base import Object
from epp.kube.objects.decode import decode_object
from epp.kube.objects.followed import Change, FollowedObjects
from epp.kube.objects.inference import (
    GROUP,
    LEGACY_GROUP,
    POLICY_KINDS,
    POOL_GROUP,
    InferenceModelRewrite,
    InferenceObjective,
    PoolMember,
    RewriteRule,
    rewrite_faults,
)
from epp.kube.resources import LEGACY_OBJECTIVES, LEGACY_REWRITES, OBJECTIVES, REWRITES
from epp.kube.watched import Watched, WatchState
from epp.routing.director.pipeline import PoolPolicies, Rewrite

_M = TypeVar("_M", bound=PoolMember)
_DEFAULT_GROUPS = frozenset({POOL_GROUP, GROUP, LEGACY_GROUP})
"""Groups that the API server adds to a reference without a group: the definitions of these kinds have different
defaults, one of them llm-d.ai, which has no pools."""
_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """The pool whose policies apply; an empty field is not compared."""

    name: str = ""
    group: str = ""
    namespace: str = ""

    def has(self, member: PoolMember) -> bool:
        """Return whether an object is for this pool; without a reference, it is for all pools of its namespace."""
        if self.namespace and member.metadata.namespace != self.namespace:
            return False
        references = member.pools
        return not references or any(
            self.name in ("", reference.name)
            and (not self.group or reference.group == self.group or reference.group in _DEFAULT_GROUPS)
            for reference in references
        )


class BuiltPolicies(NamedTuple):
    """Policies, and warnings about their objects for the operator."""

    policies: PoolPolicies
    warnings: tuple[str, ...] = ()
    """One sentence each: kind and name of the object, problem and remedy."""
    objectives: int = 0
    rewrites: int = 0
    other_pools: int = 0


def build_policies(objects: Iterable[Object], pool: PoolIdentity) -> BuiltPolicies:
    """Return the policies of a pool; objects of other kinds, and objects that are being deleted, are ignored.

    If two objects have the same kind and name, the one in the group llm-d.ai applies, or else the later one. If several
    rules are for one model, that of the oldest rewrite applies, by creation time, then by name; within a rewrite, the
    first rule. An object without a creation time is older than all others.
    """
    members = [each for each in objects if isinstance(each, PoolMember) and not each.metadata.is_terminating]
    ours = [each for each in members if pool.has(each)]
    warnings: list[str] = []
    objectives = _by_name(ours, InferenceObjective, warnings)
    rewrites = _by_name(ours, InferenceModelRewrite, warnings)
    rewrites.sort(key=lambda each: (each.metadata.created or _FIRST, each.name))
    exact: dict[str, Rewrite] = {}
    generic: Rewrite | None = None
    for each in rewrites:
        for index, rule in enumerate(each.rules):
            place = f"spec.rules[{index}]"
            warnings.extend(f"InferenceModelRewrite {each.id}: {remark}" for remark in _remarks(rule, place))
            rewrite = _rewrite(each.name, rule)
            for model in rule.models:
                exact.setdefault(model, rewrite)
            if rewrite.generic:
                generic = generic or rewrite
    return BuiltPolicies(
        PoolPolicies({each.name: each.priority for each in objectives}, exact, generic),
        tuple(warnings),
        len(objectives),
        len(rewrites),
        len(members) - len(ours),
    )


def _by_name(members: Iterable[PoolMember], kind: type[_M], warnings: list[str]) -> list[_M]:
    found: dict[str, _M] = {}
    for each in members:
        if not isinstance(each, kind):
            continue
        other = found.get(each.name)
        if other is not None and other.is_legacy == each.is_legacy:
            warnings.append(f"{kind.__name__} {each.name} occurs more than once: the last one counts")
        if other is None or other.is_legacy or not each.is_legacy:
            found[each.name] = each
    return list(found.values())


def _rewrite(name: str, rule: RewriteRule) -> Rewrite:
    """Return the rule for requests; if some targets have a weight, those without one are ignored."""
    weighted = [(each.model_rewrite, each.weight) for each in rule.targets if each.weight is not None]
    shares = weighted or [(each.model_rewrite, 1) for each in rule.targets]
    return Rewrite(
        name,
        generic=not rule.models,
        models=tuple(model for model, _ in shares),
        weights=tuple(weight for _, weight in shares),
    )


def _remarks(rule: RewriteRule, place: str) -> Iterator[str]:
    if rule.fault:
        yield f"{rule.fault}; until then, matching requests keep their model"
    unweighted = [each.model_rewrite for each in rule.targets if each.weight is None]
    if unweighted and len(unweighted) < len(rule.targets):
        names = ", ".join(unweighted)
        yield f"{place}: {names} has no weight and others have one, so it is never chosen: give all a weight, or none"


_GRACE_PERIOD = "5m"
"""Time for which objects of a missing file stay in effect; the same as for accelerator objects by default."""

_log = structlog.get_logger()


_Next: TypeAlias = tuple[Change, BuiltPolicies, tuple[str, ...]]
"""The change, the policies built from it, and problems."""


class PolicyFiles:
    """InferenceObjective and InferenceModelRewrite objects in files and directories; other kinds are ignored.

    If a version of a file or an object is invalid, the previous version stays in effect. Without a previous version,
    the object is skipped; for a rewrite, only the rules with invalid targets.
    """

    name = "--objects"
    """Flag with the paths; log lines, metrics and `/healthz` have it as the name of a plugin."""

    def __init__(self, paths: Sequence[str], clock: Clock, *, pool_name: str = "") -> None:
        """Read the files for the first time; raises ConfigurationError for a path that does not exist.

        Objects for pools with other names are ignored, unless the name is empty.
        """
        self._clock = clock
        self._pool = PoolIdentity(pool_name)
        self._source = FollowedObjects(
            paths,
            owner=self.name,
            setting=self.name,
            grace_period=_GRACE_PERIOD,
            kinds=POLICY_KINDS,
            validate=rewrite_faults,
        )
        self.policies = PoolPolicies()
        if (following := self._read()) is not None:
            self._apply(following)

    @property
    def inputs(self) -> InputState:
        state = self._source.inputs
        idle_rules = [
            InputProblem(file.file, f"{held.key.kind} {held.object.id}", "; ".join(rewrite_faults(held.object)))
            for file in self._source.present.files
            for held in file.held
            if not held.sound
        ]
        return replace(state, problems=(*state.problems, *idle_rules))

    async def follow(self, use: Callable[[PoolPolicies], None]) -> None:
        async for _ in self._source.changes():
            if await self.check():
                use(self.policies)

    async def check(self) -> bool:
        """Read the files; return whether any of them, or its objects in effect, changed."""
        following = await asyncio.to_thread(self._read)
        if following is None:
            return False
        self._apply(following)
        return True

    def _read(self) -> _Next | None:
        """Return the changed policies; None if nothing changed. Runs in a thread, so it changes no state."""
        change = self._source.read(self._clock.now())
        if change is None:
            return None
        files = change.files
        built = build_policies((held.object for file in files for held in file.held), self._pool)
        problems = [problem for file in files for problem in (*map(str, file.problems), *file.notes)]
        return change, built, (*problems, *map(str, change.unknown), *built.warnings)

    def _apply(self, following: _Next) -> None:
        change, built, problems = following
        self.policies = built.policies
        self._source.apply(change)
        self._source.report(problems)
        _log.info(
            "policies updated",
            objectives=built.objectives,
            rewrites=built.rewrites,
            for_other_pools=built.other_pools,
            problems=len(problems),
        )


_MOST_PROBLEMS = 100
_REASON_LENGTH = 500


@dataclass(slots=True)
class _Kind:
    current: Watched[Object]
    former: Watched[Object]
    uses_former: bool = False

    def chosen(self) -> Watched[Object]:
        """Return the watch to use: the same as before if it is unknown whether the current kind is installed."""
        if self.current.state in {WatchState.ABSENT, WatchState.CURRENT}:
            self.uses_former = self.current.state is WatchState.ABSENT
        return self.former if self.uses_former else self.current


class ClusterPolicies:
    """Objectives and rewrites; those of the former API group are used if the current one is not installed.

    If a version of a rewrite has an invalid rule, the previous version stays in effect. Without a previous version,
    only the invalid rules have no effect.
    """

    def __init__(
        self, cluster: Cluster, pool: PoolIdentity, namespace: str, apply: Callable[[PoolPolicies], None]
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        self._namespace = namespace
        self._apply = apply
        self._kinds: list[_Kind] = []
        self._sound: Mapping[str, InferenceModelRewrite] = {}
        """Last good version of each rewrite, by uid."""
        self._changed = asyncio.Event()
        self._unsubscribe: list[Callable[[], None]] = []
        self.warnings: tuple[str, ...] = ()
        """Objects that are only partly in effect: one sentence each."""
        self.problems: tuple[InputProblem, ...] = ()

    async def start(self) -> None:
        """Apply the policies as soon as the API server has listed them."""
        resources = (OBJECTIVES, LEGACY_OBJECTIVES, REWRITES, LEGACY_REWRITES)
        watches = [self._cluster.watch(each, decode_object, namespace=self._namespace) for each in resources]
        self._kinds = [_Kind(watches[0], watches[1]), _Kind(watches[2], watches[3])]
        for watch in watches:
            self._unsubscribe.append(watch.subscribe(lambda _: self._changed.set()))
        await asyncio.gather(*(watch.settled() for watch in watches))
        self._refresh()

    async def follow(self) -> None:
        """Apply changes until cancelled; simultaneous changes are applied as one."""
        while True:
            await self._changed.wait()
            self._refresh()

    def close(self) -> None:
        """Unsubscribe from the watches, which other pools may share."""
        while self._unsubscribe:
            self._unsubscribe.pop()()

    def _refresh(self) -> None:
        self._changed.clear()
        objects = [each for kind in self._kinds for each in kind.chosen().objects.values()]
        in_effect, problems = self._last_good(objects)
        built = build_policies(in_effect, self._pool)
        self._apply(built.policies)
        for warning in built.warnings:
            if warning not in self.warnings:
                _log.warning("policy not as written", reason=warning)
        for problem in problems:
            if problem.kept and problem not in self.problems:
                _log.warning("object not in effect", object=problem.object, reason=problem.reason, kept=True)
        self.warnings = built.warnings
        self.problems = problems
        _log.info("policies applied", objectives=built.objectives, rewrites=built.rewrites)

    def _last_good(self, objects: list[Object]) -> tuple[list[Object], tuple[InputProblem, ...]]:
        sound: dict[str, InferenceModelRewrite] = {}
        in_effect: list[Object] = []
        problems: list[InputProblem] = []
        for each in objects:
            if not isinstance(each, InferenceModelRewrite) or each.metadata.is_terminating:
                in_effect.append(each)
                continue
            uid = each.metadata.uid or each.id
            reason = "; ".join(rewrite_faults(each))
            last = self._sound.get(uid) if reason else each
            if last is not None:
                sound[uid] = last
            used = each if last is None else last
            in_effect.append(used)
            if reason and self._pool.has(used):
                title = f"InferenceModelRewrite {each.id}"
                problems.append(InputProblem("cluster", title, reason[:_REASON_LENGTH], int(last is not None)))
        self._sound = sound
        return in_effect, tuple(problems[:_MOST_PROBLEMS])
