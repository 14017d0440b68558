# SPDX-License-Identifier: Apache-2.0
"""`epp check`: validates configuration files, and shows the graph of plugins with errors and warnings."""

from collections.abc import Iterable, Mapping
from math import inf

import typer
import yaml
from rich.markup import escape
from rich.tree import Tree

from epp.cli.check_files import check_all, check_pools
from epp.cli.commands import Check
from epp.cli.input_output import counted, log_of_errors_only, new_console, print_json, show_findings, split_list
from epp.cli.options import POOL_GROUP, Output
from epp.cli.running import exit_on
from epp.config import Builder
from epp.config.describe import BandGraph, FilterUse, FlowControlGraph, Graph, PluginUse, ProfileGraph, ScorerUse
from epp.framework import ConfigurationError, SystemClock
from epp.framework.plugin import Stage, all_roles
from epp.framework.registry import Registry

REFUSED = 1
WARNED = 2

_CONSTRAINT_STATUS = 429
"""Default status of a profile for unmet constraints."""
_BEFORE_SCHEDULING = frozenset(cls.role.title.lower() for cls in all_roles() if cls.role.stage < Stage.PROFILE_CHOICE)


def check(flags: Check) -> None:
    names = split_list(flags.pool_name or "")
    is_of_pools = len(names) > 1 or flags.pool_config_dir is not None
    with exit_on(ConfigurationError):
        if is_of_pools:
            from epp.cli.kubernetes import read_pool_choice  # noqa: PLC0415  imports all of a picker

            read_pool_choice(flags)
        _refuse_idle_flags(flags, is_of_pools=is_of_pools)
    registry = Registry(modules=split_list(flags.allow_plugin_modules))
    builder = Builder(registry, SystemClock(), experimental=flags.allow_experimental_plugins)
    with log_of_errors_only():
        if is_of_pools:
            reports = check_pools(names, flags.pool_config_dir, flags.files or (), builder)
        else:
            reports = check_all(flags.files or (), builder)
    as_json = flags.output is Output.JSON
    console = new_console()
    for report in () if as_json else reports:
        show_findings(console, report.name, report.errors, report.warnings, report.notes, skipped=report.skipped)
        if report.graph is not None:
            console.print(graph_tree(report.graph))
    errors = any(report.errors for report in reports)
    warnings = any(report.warnings for report in reports)
    files = [report.for_programs() for report in reports]
    if flags.cluster:
        from epp.cli import check_cluster  # noqa: PLC0415  imports all of a picker, which files do not need

        with exit_on(ConfigurationError):
            hubs = {hub: kinds for report in reports for hub, kinds in report.hubs.items()}
            cluster = check_cluster.read_cluster(flags, hubs)
        errors, warnings = errors or bool(cluster.errors), warnings or bool(cluster.warnings)
        if as_json:
            print_json({"files": files, "cluster": check_cluster.for_programs(cluster)})
        else:
            check_cluster.show(cluster)
    elif as_json:
        print_json(files)
    if errors:
        raise typer.Exit(REFUSED)
    if flags.strict and warnings:
        raise typer.Exit(WARNED)


def _refuse_idle_flags(flags: Check, *, is_of_pools: bool) -> None:
    """Raise ConfigurationError if there is nothing to check, or for a flag that requires --cluster."""
    given = {
        "--kubeconfig": flags.kubeconfig is not None,
        "--as": flags.as_user is not None,
        "--pool-name": flags.pool_name is not None and not is_of_pools,
        "--pool-selector": flags.pool_selector is not None and not is_of_pools,
        "--pool-namespace": flags.pool_namespace is not None,
        "--pool-group": flags.pool_group != POOL_GROUP,
        "--endpoint-selector": flags.endpoint_selector is not None,
        "--endpoint-target-ports": flags.endpoint_target_ports is not None,
        "--ha-enable-leader-election": flags.ha_enable_leader_election,
    }
    idle = [flag for flag, is_given in given.items() if is_given and not flags.cluster]
    if idle:
        raise ConfigurationError(f"{', '.join(idle)}: no effect on files: add --cluster")
    if not flags.files and not flags.cluster:
        raise ConfigurationError("nothing to check: name a file, a directory or -, or give --cluster")


def graph_tree(graph: Graph) -> Tree:
    """Return the graph as a tree, in the order of a request."""
    tree = Tree("request", guide_style="dim")
    tree.add(f"parsers: {_named_all(graph.parsers)}")
    for name, plugins in graph.hooks.items():
        if name in _BEFORE_SCHEDULING:
            tree.add(f"{name}: {_named_all(plugins)}")
    _add_admission(tree, graph)
    for producer in graph.producers:
        tree.add(f"producer {_named(producer)}{_parameters(producer)}{_data('writes', producer.writes)}")
    aggregator = "" if graph.aggregator == graph.profile_picker else f", aggregator {_named(graph.aggregator)}"
    profiles = tree.add(f"profile picker {_named(graph.profile_picker)}{aggregator}{_parameters(graph.profile_picker)}")
    for role, called in graph.called.items():
        for plugin in called:
            profiles.add(f"{role.removesuffix('s')} {_named(plugin)}{_parameters(plugin)}")
    for profile in graph.profiles:
        _add_profile(profiles, profile)
    for profile in graph.shadows:
        _add_profile(tree, profile, kind="shadow profile")
    for name, plugins in graph.hooks.items():
        if name not in _BEFORE_SCHEDULING:
            tree.add(f"{name}: {', '.join(escape(plugin.name) for plugin in plugins)}")
    _add_data(tree.add("endpoint data"), graph)
    return tree


def _add_admission(tree: Tree, graph: Graph) -> None:
    if graph.flow_control is not None:
        _add_flow_control(tree.add("flow control"), graph.flow_control)
    if graph.shedding is not None:
        detector = f"{_named(graph.shedding)}{_parameters(graph.shedding)}"
        tree.add(f"negative priorities are refused while the pool is full by detector {detector}")
    for quotas in graph.quotas:
        branch = tree.add(f"quotas {_named(quotas.source)}")
        for tenant, quota in quotas.tenants.items():
            branch.add(f"tenant {escape(tenant)}: {_quota(quota)}")
        if quotas.more:
            branch.add(f"and {quotas.more} more tenants")
        branch.add("others: no limit" if quotas.default is None else f"each other tenant: {_quota(quotas.default)}")


def _quota(quota: Mapping[str, object]) -> str:
    limits = {part: quota[part] for part in ("single", "total") if quota[part]}
    if not limits:
        return "no limit"
    fate = "wait" if quota["whenExceeded"] == "Wait" else "are refused"
    return f"{escape(_flow_style(limits))}" + (f"; requests above the total {fate}" if "total" in limits else "")


def _add_flow_control(tree: Tree, flow: FlowControlGraph) -> None:
    tree.add(f"detector {_named(flow.detector)}{_parameters(flow.detector)}")
    tree.add(f"usage limits {_named(flow.usage_limits)}{_parameters(flow.usage_limits)}")
    limits = [
        "any number of requests" if flow.max_requests is None else counted(flow.max_requests, "request"),
        "of any size" if flow.max_bytes is None else f"{_bytes(flow.max_bytes)} at most",
    ]
    tree.add(f"all together: {', '.join(limits)}; without endpoints {_seconds(flow.no_endpoint_ttl_seconds)}")
    for band in flow.bands:
        ceiling = "" if band.ceiling in {None, 1.0} else f", ceiling {band.ceiling:.0%}"
        tree.add(f"priority {band.priority}: {_band(band)}{ceiling}")
    if flow.negative_band == flow.default_band:
        tree.add(f"other priorities: {_band(flow.default_band)}")
    else:
        tree.add(f"other priorities above 0: {_band(flow.default_band)}")
        tree.add(f"other priorities below 0: {_band(flow.negative_band)}")


def _band(band: BandGraph) -> str:
    limits = f"{counted(band.max_requests, 'request')}, {_bytes(band.max_bytes)}, {_seconds(band.ttl_seconds)}"
    policies = ", ".join(_named(each, with_reason=False) + _parameters(each) for each in (band.fairness, band.ordering))
    return f"{limits}; {policies}"


def _bytes(number: int) -> str:
    """Return a number of bytes as a quantity, in the largest unit that needs no fraction."""
    units = [("Gi", 2**30), ("G", 10**9), ("Mi", 2**20), ("M", 10**6), ("Ki", 2**10), ("k", 10**3)]
    return next((f"{number // size} {name}B" for name, size in units if not number % size), f"{number} bytes")


def _seconds(number: float | None) -> str:
    return "without a time limit" if number is None else f"for {number:g} s"


def _add_data(data: Tree, graph: Graph) -> None:
    for feed in graph.feeds:
        every = "" if feed.interval_seconds is None else f" every {feed.interval_seconds:g} s"
        branch = data.add(f"source {_named(feed.source)}{every}{_parameters(feed.source)}")
        for extractor in feed.extractors:
            branch.add(f"extractor {_named(extractor)}{_parameters(extractor)}{_data('writes', extractor.writes)}")
    for tagger in graph.taggers:
        data.add(f"tagger {_named(tagger)}{_parameters(tagger)}{_data('writes', tagger.writes)}")
    for source in graph.sources:
        aside = [source.name] if source.name != source.plugin.name else []
        aside += [f"precedence {source.precedence}"] if source.precedence else []
        data.add(f"discovery {_named(source.plugin)}{_aside(aside)}{_parameters(source.plugin)}")


def _add_profile(tree: Tree, profile: ProfileGraph, kind: str = "profile") -> None:
    aside = [f"fails open: {', '.join(profile.fail_open)}"] if profile.fail_open else []
    if profile.constraint_status != _CONSTRAINT_STATUS:
        aside.append(f"{profile.constraint_status} for unmet constraints")
    branch = tree.add(f"{kind} [bold]{escape(profile.name)}[/]{_aside(aside)}")
    if profile.drop_stale_after_seconds is not None:
        branch.add(f"drops endpoints that did not report for {profile.drop_stale_after_seconds:g} s")
    for step in profile.filters:
        used, notes = step.plugin, ["falls back to all"] if step.fallback_on_empty else []
        notes += [*_on_error(step.on_error, "Fail"), *_on_stale(step)]
        branch.add(f"filter {_named(used)}{_aside(notes)}{_parameters(used)}{_data('reads', used.reads)}")
    for scorer in profile.scorers:
        notes = [f"{scorer.share:.0%}", scorer.category, *_on_error(scorer.on_error, "Skip"), *_on_stale(scorer)]
        branch.add(
            f"scorer {_named(scorer.plugin)}, weight {scorer.weight:g}{_aside(notes)}"
            f"{_parameters(scorer.plugin)}{_data('reads', scorer.plugin.reads)}"
        )
    branch.add(f"picker {_named(profile.picker)}{_parameters(profile.picker)}")


def _named_all(plugins: Iterable[PluginUse]) -> str:
    by_reason: dict[str, list[str]] = {}
    for plugin in plugins:
        by_reason.setdefault(plugin.implied, []).append(f"{_named(plugin, with_reason=False)}{_parameters(plugin)}")
    return "; ".join(f"{', '.join(names)}{_added(reason)}" for reason, names in by_reason.items())


def _named(plugin: PluginUse, *, with_reason: bool = True) -> str:
    kind = _aside([] if plugin.name == plugin.type else [plugin.type])
    return f"[cyan]{escape(plugin.name)}[/]{kind}{_added(plugin.implied) if with_reason else ''}"


def _added(reason: str) -> str:
    return _aside([f"added: {reason}"] if reason else [])


def _aside(notes: list[str]) -> str:
    return f" [dim]({escape(', '.join(notes))})[/]" if notes else ""


def _on_error(value: str, default: str) -> list[str]:
    return [] if value == default else [f"onError {value}"]


def _on_stale(use: FilterUse | ScorerUse) -> list[str]:
    return [] if use.stale_after_seconds is None else [f"{use.on_stale} if stale for {use.stale_after_seconds:g} s"]


def _parameters(plugin: PluginUse) -> str:
    """Return the parameters that differ from their defaults, in the format of a file."""
    shown = {name: value for name, value in plugin.parameters.items() if name != "fallbackOnEmpty"}  # shown as a note
    return f" [dim]with {escape(_flow_style(shown))}[/]" if shown else ""


def _flow_style(content: Mapping[str, object]) -> str:
    """Return a mapping as YAML in one line."""
    text = yaml.safe_dump(dict(content), default_flow_style=True, width=inf, sort_keys=False, allow_unicode=True)
    return str(text).strip()


def _data(verb: str, names: tuple[str, ...]) -> str:
    return f" [dim]{verb} {escape(', '.join(names))}[/]" if names else ""
