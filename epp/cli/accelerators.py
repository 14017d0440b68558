# SPDX-License-Identifier: Apache-2.0
"""`epp accelerators`: the hardware of each endpoint, its cost, and the source of each fact."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from epp.cli.commands import Accelerators
from epp.cli.input_output import (
    indented,
    log_of_errors_only,
    new_console,
    plain_table,
    print_json,
    read_config,
    read_endpoints,
    split_list,
)
from epp.cli.options import Output
from epp.cli.running import exit_on
from epp.config import Assembly, Builder, assemble, default_config
from epp.framework import Candidates, ConfigurationError, SystemClock
from epp.framework.accelerators.arrays import relative_capacity
from epp.framework.accelerators.tag import AcceleratorTag
from epp.framework.datalayer import Report as Tagged
from epp.framework.registry import Registry
from epp.framework.snapshot import ACCELERATOR
from epp.hardware.node_devices import ClassTotal, ClassTotals, fit_report
from epp.hardware.tag_builder import Missing, missing_of
from epp.hardware.tagger import AcceleratorTagger
from epp.hardware.tensor_fusion import QuotaReport, quota_reports
from epp.kube.objects.decode import versions_in
from epp.kube.objects.files import ObjectFiles, parse
from epp.kube.objects.inference import INFERENCE_KINDS, InferencePool
from epp.pool.discovery import SeveralSources
from epp.pool.discovery.pods import Chosen, PodChoice, choose
from epp.routing.datastore import Datastore

_GIB = 2**30
_UNKNOWN = "-"
_MOST_PROBLEMS = 100
"""Maximum number of printed problems of objects."""


class EndpointReport(msgspec.Struct, frozen=True, rename="camel"):
    endpoint: str
    address: str
    tag: AcceleratorTag
    cost_per_hour: float | None
    """US dollars an hour for the whole endpoint; None without a price."""
    price_source: str
    """Source of that price: `prices.yaml: p5.48xlarge in us-east-1`."""
    relative_capacity: float
    """fp16 TFLOPS over the median of the pool."""
    problems: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    """Facts that no source has."""


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """The pool, and the cluster as described by objects."""

    endpoints: tuple[EndpointReport, ...]
    classes: dict[str, ClassTotal]
    fit: dict[str, dict[str, dict[str, int]]] | None = None
    """Number of additional slices that fit, by node, GPU and MIG profile."""
    quotas: tuple[QuotaReport, ...] = ()
    """Limits and use of namespaces, in TensorFusion."""
    problems: tuple[str, ...] = ()
    """Problems of objects and files that are not in effect, and of ignored values."""
    remarks: tuple[str, ...] = ()
    """Notes on pods that are not endpoints, and on assumed ports."""
    skipped: int = 0
    """Number of objects and files that could not be read."""


def accelerators(flags: Accelerators) -> None:
    with exit_on(ConfigurationError), log_of_errors_only():
        report = asyncio.run(_report(flags))
    if flags.output is Output.JSON:
        print_json(msgspec.to_builtins(report, order="deterministic"))
    else:
        _show(report)


async def _report(flags: Accelerators) -> Report:
    clock = SystemClock()
    builder = Builder(Registry(), clock, experimental=True)
    assembly = assemble(read_config(flags.config_file, None) or default_config(), builder)
    source = _source(assembly, builder, split_list(flags.objects), flags.prices)
    discovery = read_endpoints(flags.endpoints) or (SeveralSources(assembly.sources) if assembly.sources else None)
    store = Datastore(clock)
    remarks: tuple[str, ...] = ()
    if discovery is not None:
        await discovery.start(store)
    elif source.parameters.paths:
        chosen = _pods_of_files(source)
        store.replace(chosen.endpoints)
        remarks = chosen.remarks
        if not chosen.endpoints:
            remarks += (f"no endpoints: the files have no {chosen.title} and are ready",)
    else:
        raise ConfigurationError("no endpoints: give --endpoints, --objects with pods, or a --config-file with them")
    merged = [source.merged(endpoint) for endpoint in store.endpoints]
    for endpoint, each in zip(store.endpoints, merged, strict=True):
        store.tag(endpoint, Tagged(attributes={ACCELERATOR: each.tag}))
    snapshot = store.snapshot()
    capacities = relative_capacity(Candidates(snapshot, snapshot.slots))
    found = tuple(
        EndpointReport(
            endpoint.id,
            endpoint.hostport,
            each.tag,
            each.tag.cost_per_hour(),
            each.tag.price_source(),
            float(capacity),
            (*each.conflicts, *each.warnings),
            missing_of(each.tag),
        )
        for endpoint, each, capacity in zip(store.endpoints, merged, capacities, strict=True)
    )
    return Report(
        found,
        dict(ClassTotals().of(source.inventory)),
        {node: {gpu: dict(more) for gpu, more in gpus.items()} for node, gpus in fit_report(source.inventory).items()}
        if flags.fit
        else None,
        quota_reports(source.inventory.gpu_quotas.values()),
        (*source.inputs.sentences, *source.inventory.other_problems),
        remarks,
        source.inventory.skipped,
    )


def _source(assembly: Assembly, builder: Builder, objects: Sequence[str], prices: Path | None) -> AcceleratorTagger:
    """Return the source of the configuration, with the paths of --objects and the file of --prices."""
    declared = next((tagger for tagger in assembly.taggers if isinstance(tagger, AcceleratorTagger)), None)
    for path in objects:
        if not Path(path).exists():
            raise ConfigurationError(f"--objects: there is no file or directory {path!r}")
    if prices is not None and not prices.is_file():
        raise ConfigurationError(f"--prices: there is no file {str(prices)!r}")
    if declared is not None and not objects and prices is None:
        return declared
    given: dict[str, Any] = {} if declared is None else msgspec.to_builtins(declared.parameters)
    added = {} if prices is None else {"prices": str(prices)}
    source = builder.registry.build(
        AcceleratorTagger.plugin_type,
        {**given, **added, "paths": [*given.get("paths", ()), *objects]},
        name=AcceleratorTagger.plugin_type,
        clock=builder.clock,
    )
    assert isinstance(source, AcceleratorTagger)  # noqa: S101  by its plugin type
    return source


def _pods_of_files(source: AcceleratorTagger) -> Chosen:
    """Return the pods in the files of the source: those of all InferencePools, or those with accelerators."""
    pools: list[InferencePool] = []
    for file, content in ObjectFiles(source.parameters.paths).read().contents.items():
        with suppress(ValueError):  # the source of objects has rejected the file
            versions = versions_in(parse(file, content.data), INFERENCE_KINDS)
            pools += [each.object for each in versions if isinstance(each.object, InferencePool)]
    inventory = source.inventory
    choice = PodChoice(every_pool=True, cluster=source.parameters.cluster)
    return choose((*inventory.nodes.values(), *inventory.pods.values(), *pools), choice)


def _show(report: Report) -> None:
    console = new_console()
    if report.endpoints:
        console.print(_endpoints(report.endpoints))
    _show_sources(console, report.endpoints)
    _show_problems(console, report)
    _show_missing(console, report.endpoints)
    for remark in report.remarks:
        console.print(f"[yellow]{escape(remark)}[/]")
    if report.classes:
        console.print(_classes(report.classes))
    if report.fit is not None:
        console.print(_fits(report.fit))
    if report.quotas:
        console.print(_quotas(report.quotas))


def _show_problems(console: Console, report: Report) -> None:
    for each in report.endpoints:
        for problem in each.problems:
            console.print(f"[yellow]{escape(each.endpoint)}[/]: {escape(problem)}", soft_wrap=True)
    for problem in report.problems[:_MOST_PROBLEMS]:
        console.print(f"[yellow]![/] {escape(problem)}", soft_wrap=True)
    if (more := len(report.problems) - _MOST_PROBLEMS) > 0:
        console.print(f"[yellow]![/] and {more} more: --output=json has all")


def _endpoints(reports: tuple[EndpointReport, ...]) -> Table:
    columns = ("endpoint", "accelerator", "class", "slice", ">memory", ">$/h", ">capacity", "state")
    table = plain_table(*columns, title="endpoints")
    for report in reports:
        tag = report.tag
        name = f"{tag.vendor} {tag.model or tag.product}".strip() or tag.kind.value
        memory = _UNKNOWN if tag.total_memory_bytes is None else f"{tag.total_memory_bytes / _GIB:.0f} GiB"
        table.add_row(
            escape(report.endpoint),
            escape(f"{tag.count} x {name}" if tag.count else name),
            escape(tag.primary_class),
            _slice(tag),
            memory,
            _UNKNOWN if report.cost_per_hour is None else f"{report.cost_per_hour:.2f}",
            f"{report.relative_capacity:.2f}",
            escape(f"{tag.state.value}: {tag.reason}" if tag.reason else tag.state.value),
        )
    return table


def _show_sources(console: Console, reports: Iterable[EndpointReport]) -> None:
    found = [report for report in reports if report.tag.provenance]
    if found:
        console.print("\n[italic]sources[/]")
    for report in found:
        console.print(f" {escape(report.endpoint)}", soft_wrap=True)
        fields_of: dict[str, list[str]] = {}
        for field, source in report.tag.provenance.items():
            fields_of.setdefault(source, []).append(field)
        for source, fields in fields_of.items():
            console.print(indented(escape(f"{source}: {', '.join(fields)}"), 4))


def _show_missing(console: Console, reports: Iterable[EndpointReport]) -> None:
    """Print the facts that no source has, each with its remedy and the endpoints that lack it."""
    endpoints: dict[Missing, list[str]] = {}
    for report in reports:
        for each in report.missing:
            endpoints.setdefault(each, []).append(report.endpoint)
    if endpoints:
        console.print("\n[italic]missing[/]")
    for each, names in endpoints.items():
        console.print(indented(escape(f"{each.fact}: {each.remedy}"), 1))
        console.print(indented(escape(", ".join(names)), 4))


def _slice(tag: AcceleratorTag) -> str:
    part = tag.partition
    if part.profile:
        return escape(part.profile)
    return f"1/{part.sharers} {part.kind.value}" if part.sharers > 1 else ""


def _classes(classes: dict[str, ClassTotal]) -> Table:
    table = plain_table("class", "nodes", "devices", "unrequested", title="classes")
    for name, total in classes.items():
        table.add_row(escape(name), escape(", ".join(total.nodes)), str(total.total), str(total.available))
    return table


def _fits(fit: dict[str, dict[str, dict[str, int]]]) -> Table:
    table = plain_table("node", "GPU", "profiles", title="additional slices that fit, if all have one profile")
    for node, gpus in fit.items():
        for gpu, profiles in gpus.items():
            more = ", ".join(f"{profile} x {count}" for profile, count in profiles.items())
            table.add_row(escape(node), escape(gpu), escape(more))
    return table


def _quotas(quotas: Sequence[QuotaReport]) -> Table:
    table = plain_table("namespace", "resource", ">used", ">limit", "", title="quotas")
    for quota in quotas:
        for resource, line in quota.total.items():
            alert = f"[yellow]above {quota.alert_threshold_percent} %[/]" if line.alert else ""
            used, limit = (_amount(resource, amount) for amount in (line.used, line.limit))
            table.add_row(escape(quota.namespace), resource, used, limit, alert)
        for resource, amount in quota.single.items():
            table.add_row(escape(quota.namespace), f"single.{resource}", "", _amount(resource, amount), "")
    return table


def _amount(resource: str, amount: float | None) -> str:
    if amount is None:
        return _UNKNOWN
    return f"{amount / _GIB:g} GiB" if resource.endswith("vram") else f"{amount:g}"
