# SPDX-License-Identifier: Apache-2.0
"""`epp check --cluster`: pool, objects and missing rights of a picker in a cluster."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epp.app.cluster_check import ClusterReport, check_cluster
from epp.app.pool_check import PoolReport
from epp.cli.commands import Check
from epp.cli.input_output import log_of_errors_only, new_console, print_labelled, show_findings
from epp.cli.kubernetes import lease_name, read_namespace, read_pool_choice, read_source
from epp.framework import ConfigurationError
from epp.framework.cluster_objects import HubAccess, ObjectKind, ObjectReader
from epp.hardware.selection import AcceleratorSelectionProducer
from epp.hardware.tagger import AcceleratorTagger
from epp.kube.access import ApiUnreachableError, KubeApi
from epp.kube.resources import Importance
from epp.kube.reviews import Access, AccessState
from epp.pool.clusters.tagger import ClusterTagger

_COLOURS = {AccessState.ALLOWED: "green", AccessState.ABSENT: "yellow"}
"""The other states are red."""


def read_cluster(flags: Check, hubs: Mapping[HubAccess, Iterable[ObjectKind]]) -> ClusterReport:
    """Check the cluster, and the hubs that configurations name; raises ConfigurationError without access."""
    source = read_pool_choice(flags) or read_source(flags)
    namespace, user = read_namespace(flags), flags.as_user or ""
    lease = lease_name(flags, namespace) if flags.ha_enable_leader_election else None
    if flags.as_user is not None and not (user.isascii() and user.isprintable() and user.strip()):
        raise ConfigurationError(f"--as: {user!r} is not the name of a user")

    readers: list[ObjectReader[Any]] = [AcceleratorTagger(), AcceleratorSelectionProducer(), ClusterTagger()]

    async def report() -> ClusterReport:
        api = KubeApi(flags.kubeconfig, as_user=user)
        try:
            return await check_cluster(
                api, source, namespace, pool_group=flags.pool_group, lease=lease, readers=readers, hubs=hubs
            )
        except ApiUnreachableError as error:
            raise ConfigurationError(f"the API server stopped answering: {error}; try again") from error
        finally:
            await api.close()

    with log_of_errors_only():
        return asyncio.run(report())


def for_programs(report: ClusterReport) -> dict[str, object]:
    plain: dict[str, object] = msgspec.to_builtins(report)
    plain["access"] = _plain(report.access)
    plain["hubs"] = [{**msgspec.to_builtins(hub), "access": _plain(hub.access)} for hub in report.hubs]
    return plain


def _plain(access: Iterable[Access]) -> list[dict[str, object]]:
    return [
        {
            "resource": each.need.resource.title,
            "name": each.need.name or None,
            "namespace": each.need.namespace or None,
            "importance": each.need.importance,
            "purpose": each.need.purpose,
            "verbs": each.need.verbs,
            "state": each.state,
            "version": each.version or None,
            "missing": each.missing,
            "untried": each.untried,
            "reason": each.reason or None,
        }
        for each in access
    ]


def show(report: ClusterReport) -> None:
    console = new_console()
    user = f" as {report.user}" if report.user else ""
    show_findings(console, f"cluster {report.server}{user}", report.errors, report.warnings)
    for note in report.notes:
        print_labelled(console, "  note    ", escape(note))
    _show_access(console, report.access)
    for hub in report.hubs:
        user = f" as {hub.user}" if hub.user else ""
        print_labelled(console, "", escape(f"hub {hub.server or 'unknown'} of {hub.place}{user}"))
        _show_access(console, hub.access)
    for pool in report.pools or ((report.pool,) if report.pool else ()):
        for line in _pool_lines(pool):
            print_labelled(console, "  ", escape(line))
    _show_roles("All rights that the picker needs in its namespace", report.roles)
    _show_roles("Optional, for the hardware of endpoints", report.hardware_roles)
    _show_roles("Optional, for the clusters and scores of a hub", report.hub_roles)
    for hub in report.hubs:
        _show_roles(f"For the hub {hub.server}: apply it there", hub.roles)
    _show_roles("Needed unless --metrics-endpoint-auth=false, to check who may read metrics", report.metrics_roles)
    of_hubs = any(hub.roles for hub in report.hubs)
    if report.roles or report.hardware_roles or report.hub_roles or report.metrics_roles or of_hubs:
        console.print()
    console.print(escape(report.summary), soft_wrap=True)


def _show_roles(title: str, roles: tuple[Mapping[str, Any], ...]) -> None:
    """Print roles as a text for `kubectl apply`."""
    if roles:
        texts = (yaml.safe_dump(each, sort_keys=False, default_flow_style=None, width=10_000) for each in roles)
        text = "---\n".join(texts)
        typer.echo(f"\n# {title}; for kubectl apply -f -\n{text}", nl=False)


def _show_access(console: Console, access: tuple[Access, ...]) -> None:
    table = Table(box=None, pad_edge=True)
    for heading in ("resource", "where", "access", "need", "for"):
        table.add_column(heading, overflow="fold", no_wrap=heading in {"where", "access", "need"})
    absent: list[str] = []
    for each in access:
        need = each.need
        if each.state is AccessState.ABSENT and need.importance is not Importance.REQUIRED:
            absent.append(need.resource.title)
        else:
            table.add_row(
                escape(f"{need.resource.title} {need.name}".strip()),
                escape(need.namespace or "cluster"),
                f"[{_COLOURS.get(each.state, 'red')}]{escape(_access(each))}[/]",
                need.importance,
                escape(need.purpose),
            )
    console.print(table)
    if absent:
        print_labelled(console, "  ", f"[dim]not installed, and not needed: {escape(', '.join(absent))}[/]")


def _access(access: Access) -> str:
    if access.state is AccessState.FORBIDDEN:
        return f"no {', '.join(access.missing)}"
    if access.missing:
        return f"{access.state}, without {', '.join(access.missing)}"
    return str(access.state)


def _pool_lines(pool: PoolReport) -> list[str]:
    if not pool.found:
        return []
    ports = ", ".join(map(str, pool.ports))
    name = f"InferencePool {pool.name}: pods with " if pool.name else "pods with "
    protocol = f", {pool.protocol}" if pool.protocol else ""
    lines = [f"{name}{pool.labels}; ports {ports}{protocol}"]
    if pool.pods is not None:
        counts = pool.pods
        others = {
            "not ready": counts.not_ready,
            "terminating": counts.terminating,
            "without an IP address": counts.without_address,
            "ended": counts.ended,
            "without an active port": counts.without_port,
        }
        words = [f"{counts.ready} ready", *(f"{count} {state}" for state, count in others.items() if count)]
        lines.append(f"pods: {counts.matching} match, {', '.join(words)}; endpoints: {pool.endpoints}")
    elsewhere = f"; {pool.other_pools} more are for other pools" if pool.other_pools else ""
    lines.append(f"objectives: {pool.objectives}, rewrites: {pool.rewrites}{elsewhere}")
    return lines
