# SPDX-License-Identifier: Apache-2.0
"""Pool and objects that a picker would find in a cluster, its missing rights, and the roles that grant them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from epp.app.pool_check import PoolFindings, PoolReport, check_objects, check_pool, check_pools
from epp.app.pools import PoolChoice
from epp.framework.cluster_objects import HubAccess, ObjectKind, ObjectReader
from epp.framework.errors import ConfigurationError
from epp.kube.access import ApiError, ApiUnreachableError, KubeApi
from epp.kube.configuration import read_secret
from epp.kube.readers import secret_data
from epp.kube.resources import (
    CLUSTER,
    HARDWARE,
    METRICS,
    SECRETS,
    Importance,
    Need,
    binding,
    needs_of,
    needs_of_access,
    needs_of_hub,
    needs_of_metrics,
    needs_of_picker,
    resource_of,
    role,
)
from epp.kube.reviews import Access, AccessState, check_access, user_of
from epp.pool.discovery import PodTarget, PoolName

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import SingleConfig

_ROLE_NAME = "endpoint-picker"


class ClusterReport(msgspec.Struct, frozen=True):
    server: str
    user: str
    """Empty if the API server does not report it."""
    namespace: str
    would_be_ready: bool
    summary: str
    """Sentence about readiness and endpoints."""
    access: tuple[Access, ...]
    pool: PoolReport | None = None
    """None for no pool and for several pools."""
    pools: tuple[PoolReport, ...] = ()
    """Reports of several pools; empty for a single pool."""
    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    roles: tuple[Mapping[str, Any], ...] = ()
    """Role with all needs of the picker, and its binding; empty if all rights are granted."""
    hardware_roles: tuple[Mapping[str, Any], ...] = ()
    """Role and ClusterRole for objects about hardware."""
    hub_roles: tuple[Mapping[str, Any], ...] = ()
    """Role and ClusterRole for objects of a hub, which describe clusters."""
    metrics_roles: tuple[Mapping[str, Any], ...] = ()
    """Role and ClusterRole for reviews of clients that read metrics."""
    hubs: tuple["HubReport", ...] = ()


class HubReport(msgspec.Struct, frozen=True):
    """Rights on a hub of the configuration."""

    place: str
    """Source of the address and credentials."""
    server: str = ""
    user: str = ""
    access: tuple[Access, ...] = ()
    warnings: tuple[str, ...] = ()
    roles: tuple[Mapping[str, Any], ...] = ()
    """Role and ClusterRole for the user; empty if all rights are granted."""


async def check_cluster(
    api: KubeApi,
    source: PoolName | PodTarget | PoolChoice | None,
    namespace: str,
    *,
    pool_group: str,
    lease: str | None = None,
    readers: Iterable[ObjectReader[Any]] = (),
    hubs: Mapping[HubAccess, Iterable[ObjectKind]] = MappingProxyType({}),
) -> ClusterReport:
    """Return the report; raises ConfigurationError without any access, and ApiUnreachableError.

    `lease` is the name of the lease for leader election, None without election. `readers` check the objects. `hubs`
    are those of the configuration, with the kinds that are read from each.
    """
    user = await user_of(api)
    group = None if isinstance(source, PodTarget) else pool_group
    needs = (*needs_of_picker(namespace, pool_group=group, lease=lease), *needs_of_metrics(), *needs_of_hub(namespace))
    needs += tuple(need for hub in hubs for need in needs_of_access(hub, namespace))
    found = await check_access(api, needs)
    pools, pool = PoolFindings(), None
    if isinstance(source, PoolChoice):
        pools = await check_pools(api, source)
    elif source is not None:
        pool = await check_pool(api, source, namespace)
        pools = PoolFindings((pool,), pool.errors, pool.warnings)
    object_warnings = await check_objects(api, readers, namespace)
    hub_reports = tuple([await check_hub(api, hub, kinds, namespace) for hub, kinds in hubs.items()])
    hub_warnings = [warning for hub in hub_reports for warning in hub.warnings]
    names = (_ROLE_NAME, source.name) if isinstance(source, PoolName) else (_ROLE_NAME,)

    def roles(title: str, purpose: str) -> tuple[Mapping[str, Any], ...]:
        return tuple(_roles([each for each in found if each.need.purpose == purpose], user, namespace, *names, title))

    needed = [each for each in found if each.need.purpose not in {HARDWARE, CLUSTER, METRICS}]
    ready, summary = _outcome(found, pools.pools, namespace)
    return ClusterReport(
        server=api.server,
        user=user,
        namespace=namespace,
        would_be_ready=ready,
        summary=summary,
        access=found,
        pool=pool,
        pools=() if pool is not None else pools.pools,
        errors=(*_problems(found, Importance.REQUIRED), *pools.errors),
        warnings=(*_problems(found, Importance.RECOMMENDED), *pools.warnings, *object_warnings, *hub_warnings),
        notes=tuple(_notes(found)),
        hubs=hub_reports,
        roles=tuple(_roles(needed, user, namespace, *names)),
        hardware_roles=roles("hardware", HARDWARE),
        hub_roles=roles("hub", CLUSTER),
        metrics_roles=roles("metrics", METRICS),
    )


async def check_hub(api: KubeApi, hub: HubAccess, kinds: Iterable[ObjectKind], namespace: str) -> HubReport:
    """Return the rights on a hub; `api` and `namespace` are those of the pool."""
    hub_api: KubeApi | None = None
    try:
        hub_api = await _api_of(api, hub, namespace)
        user = await user_of(hub_api, str(hub))
        own = hub_api.namespace or namespace
        resources = [resource for resource in map(resource_of, kinds) if resource.plural]
        found = await check_access(hub_api, needs_of(resources, CLUSTER, own, importance=Importance.RECOMMENDED))
    except (ConfigurationError, ApiError, ApiUnreachableError) as error:
        return HubReport(str(hub), warnings=(f"hub {hub}: not readable: {error}",))
    finally:
        if hub_api is not None:
            await hub_api.close()
    warnings = tuple(f"hub {hub_api.server}: {problem}" for problem in _problems(found, Importance.RECOMMENDED))
    roles = tuple(_roles(found, user, own, _ROLE_NAME, "hub"))
    return HubReport(str(hub), hub_api.server, user, found, warnings, roles)


async def _api_of(api: KubeApi, hub: HubAccess, namespace: str) -> KubeApi:
    """Return access to a hub; raises ConfigurationError, ApiError and ApiUnreachableError."""
    if not hub.secret:
        return KubeApi(Path(hub.kubeconfig), context=hub.context, setting="kubeconfig")
    space, _, name = hub.secret.rpartition("/")
    content = await api.request("GET", f"{SECRETS.path('v1', space or namespace)}/{name}")

    async def read() -> "SingleConfig":
        return read_secret(secret_data(msgspec.json.decode(content)), str(hub), hub.key, hub.context)

    return KubeApi(read=read, setting=str(hub))


def _problems(found: Iterable[Access], importance: Importance) -> list[str]:
    return [problem for each in found if each.need.importance is importance and (problem := _problem(each))]


def _problem(access: Access) -> str:
    """Return the problem, its effect and the remedy; empty for no problem."""
    need = access.need
    place = f"in namespace {need.namespace}" if need.namespace else "in the cluster"
    match access.state:
        case AccessState.FORBIDDEN:
            verbs = " and ".join(verb for verb in access.missing if verb not in need.dispensable)
            return f"{_title(need)}: {verbs} forbidden {place} ({need.purpose}): apply the Role below"
        case AccessState.FAILED:
            return f"{_title(need)}: not readable {place} ({need.purpose}): {access.reason}"
        case AccessState.ABSENT if need.importance is Importance.REQUIRED:
            remedy = "name the API server of a cluster with pods (--kubeconfig)"
            if need.resource.kind == "InferencePool":
                version = need.resource.api_version(need.resource.versions[0])
                remedy = f"install the CustomResourceDefinition of InferencePool in {version}, or correct --pool-group"
            return f"{_title(need)}: not installed ({need.purpose}): {remedy}"
        case _:
            return ""


def _notes(found: Iterable[Access]) -> list[str]:
    notes = []
    optional = [each for each in found if each.need.importance is Importance.OPTIONAL]
    if forbidden := sum(each.state is AccessState.FORBIDDEN for each in optional):
        kinds = "1 optional kind is" if forbidden == 1 else f"{forbidden} optional kinds are"
        notes.append(f"{kinds} forbidden; the roles below allow {'it' if forbidden == 1 else 'them'}")
    notes += [
        f"{_title(each.need)}: not readable: {each.reason}" for each in optional if each.state is AccessState.FAILED
    ]
    if untried := [f"{verb} {_title(each.need)}" for each in found for verb in each.untried]:
        notes.append(f"not checked, because the API server does not support access reviews: {', '.join(untried)}")
    return notes


def _outcome(found: Iterable[Access], pools: Sequence[PoolReport], namespace: str) -> tuple[bool, str]:
    """Return whether the picker would become ready, and the summary."""
    required = [each for each in found if each.need.importance is Importance.REQUIRED]
    if lacking := [_title(each.need) for each in required if _prevents_start(each)]:
        return False, f"The picker would not become ready: it cannot use {', '.join(lacking)}."
    if unwatched := [_title(each.need) for each in required if each.state is AccessState.FORBIDDEN]:
        return True, f"The picker would become ready, but would not see changes of {', '.join(unwatched)}."
    if not pools:
        return True, f"The picker of an InferencePool in namespace {namespace} would become ready."
    return True, f"The picker would become ready{_endpoints_of(pools)}."


def _endpoints_of(pools: Sequence[PoolReport]) -> str:
    """Return the end of the summary, about the endpoints."""
    endpoints = sum(each.endpoints for each in pools)
    counted = f", with {endpoints} endpoint{'' if endpoints == 1 else 's'}"
    if len(pools) > 1:
        without = [each.name for each in pools if not each.endpoints]
        refused = f", and would respond with 503 for {', '.join(without)} until a pod is ready" if without else ""
        return f"{counted} in {len(pools)} pools{refused}"
    (pool,) = pools
    if not pool.found:
        return " without endpoints, and would respond with 503 until the InferencePool exists"
    if not pool.endpoints:
        return " without endpoints, and would respond with 503 until a pod is ready"
    return counted


def _prevents_start(access: Access) -> bool:
    """Return whether the picker cannot become ready without this right: a list, or the lease of the leader."""
    if access.state is AccessState.FORBIDDEN and access.need.is_read:
        return "list" in access.missing
    return access.state is not AccessState.ALLOWED


def _roles(found: Iterable[Access], user: str, namespace: str, *names: str) -> Iterable[Mapping[str, Any]]:
    """Yield a Role and a ClusterRole, each with its binding, if one of its rights is forbidden.

    Each has all rights of its scope, not only the missing ones, so that a later version can replace it.
    """
    access = tuple(found)
    for space, name in ((namespace, "-".join(names)), ("", "-".join((namespace, *names)))):
        ours = [each for each in access if each.need.namespace == space]
        if any(each.state is AccessState.FORBIDDEN for each in ours):
            wanted = [
                each.need
                for each in ours
                if each.need.importance is Importance.REQUIRED or each.state is not AccessState.ABSENT
            ]
            granting = role(name, wanted, namespace=space)
            yield granting
            if user:
                yield binding(granting, name, user, namespace=space)


def _title(need: Need) -> str:
    return f"{need.resource.title} {need.name}" if need.name else need.resource.title
