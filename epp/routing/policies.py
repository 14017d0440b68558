# SPDX-License-Identifier: Apache-2.0
"""Policies of a pool from InferenceObjective and InferenceModelRewrite objects in files or in the cluster."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple, TypeVar

import structlog

from epp.framework.clock import Clock
from epp.framework.cluster_objects import ObjectsOfKind
from epp.framework.datalayer import AffectedEndpoints, no_endpoint
from epp.framework.plugin import Parameters
from epp.framework.plugin_status import InputProblem, InputState
from epp.kube.objects.base import Object
from epp.kube.objects.followed import Change, Effect, FollowsObjects
from epp.kube.objects.inference import (
    GROUP,
    LEGACY_GROUP,
    POLICY_KINDS,
    POOL_GROUP,
    InferenceModelRewrite,
    InferenceObjective,
    PoolMember,
    RewriteRule,
)
from epp.kube.objects.last_good import FileObjects
from epp.routing.director.pipeline import PoolPolicies, Rewrite

_M = TypeVar("_M", bound=PoolMember)
_DEFAULT_GROUPS = frozenset({POOL_GROUP, GROUP, LEGACY_GROUP})
"""Groups that the API server adds to a reference without a group: the definitions of these kinds have different
defaults, one of them llm-d.ai, which has no pools."""
_FIRST = datetime.min.replace(tzinfo=UTC)


class PoolIdentity(Parameters, frozen=True):
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


_MOST_PROBLEMS = 100
_REASON_LENGTH = 500

_log = structlog.get_logger()


class Policies(FollowsObjects[PoolIdentity]):
    """Objectives and rewrites of one pool, in effect as `policies`.

    If a version of a file or an object is invalid, the previous version stays in effect. Without a previous version,
    the object is skipped; for a rewrite, only the rules with invalid targets.
    """

    def setup(self) -> None:
        self._built = BuiltPolicies(PoolPolicies())
        self._idle_rules: tuple[InputProblem, ...] = ()
        self._remarks: tuple[str, ...] = ()
        self.start_following((), POLICY_KINDS)

    @property
    def policies(self) -> PoolPolicies:
        return self._built.policies

    @property
    def inputs(self) -> InputState:
        state = super().inputs
        return replace(state, problems=(*state.problems, *self._idle_rules), remarks=self._remarks)

    @property
    def sentences(self) -> Sequence[str]:
        """All but those about idle rules, of which the remarks say more."""
        return replace(self.inputs, problems=super().inputs.problems).sentences

    def effect_of(self, change: Change, kinds: Sequence[ObjectsOfKind] = ()) -> Effect:  # noqa: ARG002  no tags
        built = build_policies((held for file in change.files for held in file.held), self.parameters)
        idle_rules = tuple(islice(_idle_rules(change.files, self.parameters), _MOST_PROBLEMS))
        remarks = (*(note for file in change.files for note in file.notes), *built.warnings)

        def effect() -> AffectedEndpoints:
            self._built, self._idle_rules, self._remarks = built, idle_rules, remarks
            _log.info(
                "policies updated",
                objectives=built.objectives,
                rewrites=built.rewrites,
                for_other_pools=built.other_pools,
                problems=len(self.sentences),
            )
            return no_endpoint

        return effect


def _idle_rules(files: Iterable[FileObjects], pool: PoolIdentity) -> Iterator[InputProblem]:
    """Yield the rewrites of the pool that are in effect without their invalid rules."""
    for file in files:
        for held in file.held:
            if isinstance(held, InferenceModelRewrite) and held.invalid and pool.has(held):
                yield InputProblem(file.file, f"{held.key.kind} {held.id}", held.invalid[:_REASON_LENGTH])


def policies_in_files(paths: Sequence[str], clock: Clock, pool_name: str = "") -> Policies:
    """Return the policies in the files of `--objects`; raises ConfigurationError for a path that does not exist.

    Objects for pools of other names are ignored, unless the name is empty.
    """
    policies = Policies(PoolIdentity(pool_name), name="--objects", clock=clock)
    policies.read_files(paths)
    return policies
