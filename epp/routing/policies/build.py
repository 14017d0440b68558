# SPDX-License-Identifier: Apache-2.0
"""The policies of one pool, from the objects of a cluster or of files."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from epp.kube.objects.base import Object
from epp.kube.objects.inference import (
    GROUP,
    LEGACY_GROUP,
    POOL_GROUP,
    InferenceModelRewrite,
    InferenceObjective,
    PoolMember,
    RewriteRule,
)
from epp.routing.director.pipeline import PoolPolicies, Rewrite

_M = TypeVar("_M", bound=PoolMember)
_DEFAULT_GROUPS = frozenset({POOL_GROUP, GROUP, LEGACY_GROUP})
"""Groups that the API server writes into a reference without one: each definition of these kinds has another default,
llm-d.ai among them, which has no pools."""
_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PoolIdentity:
    """The pool whose policies are wanted; an empty field is not compared."""

    name: str = ""
    group: str = ""
    namespace: str = ""

    def has(self, member: PoolMember) -> bool:
        """Return whether an object is for this pool: one without a reference is for all pools of its namespace."""
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
    """Return the policies of a pool; other kinds of objects, and those being deleted, are left out.

    Of two objects of one kind and name, that of the group llm-d.ai counts, or else the later one. Of rules for one
    model, that of the oldest rewrite counts, by creation time, then by name; within a rewrite, the first. An object
    without a creation time is older than all others.
    """
    members = [each for each in objects if isinstance(each, PoolMember) and not each.metadata.is_terminating]
    ours = [each for each in members if pool.has(each)]
    warnings: list[str] = []
    objectives = _by_name(ours, InferenceObjective, warnings)
    rewrites = sorted(_by_name(ours, InferenceModelRewrite, warnings), key=_age)
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


def _age(rewrite: InferenceModelRewrite) -> tuple[datetime, str]:
    return rewrite.metadata.created or _FIRST, rewrite.name


def _rewrite(name: str, rule: RewriteRule) -> Rewrite:
    """Return the rule for requests: where some targets have a weight, those without one are left out."""
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
        yield f"{rule.fault}; until then, requests that the rule is for keep their model"
    unweighted = [each.model_rewrite for each in rule.targets if each.weight is None]
    if unweighted and len(unweighted) < len(rule.targets):
        names = ", ".join(unweighted)
        yield f"{place}: {names} has no weight and others have one, so it is never chosen: give all a weight, or none"
