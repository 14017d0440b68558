# SPDX-License-Identifier: Apache-2.0
"""The commands: help, flags and defaults. The code of a command is imported when it runs.

A command runs the function of its name in the module of its name, with its flags; the commands of a group share a
module.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from epp.cli.options import (
    AdminPort,
    Endpoints,
    EndpointSelector,
    EndpointTargetPorts,
    Experimental,
    Kubeconfig,
    Listen,
    MetricsPort,
    Output,
    OutputFormat,
    PluginModules,
    PoolGroup,
    PoolNamespace,
    Switch,
    Verbosity,
    count_option,
    duration_option,
    port_option,
    switch_option,
)
from epp.cli.picker_flags import POOL_GROUP, Gateway, Serve


@dataclass(frozen=True, kw_only=True)
class Check:
    """Validate configuration files and show their plugins, or check the rights of a picker in a cluster. Exit
    code 1: a file is invalid, or the picker would not serve.
    """  # noqa: D205  one paragraph is the help

    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="EndpointPickerConfig files, directories of them, or - for standard input."
        ),
    ] = None
    output: OutputFormat = Output.TEXT
    strict: Annotated[Switch, switch_option("Exit with code 2 if there are warnings.")] = Switch.FALSE
    allow_experimental_plugins: Experimental = Switch.FALSE
    allow_plugin_modules: PluginModules = ""
    cluster: Annotated[
        Switch,
        switch_option(
            "Check the access to Kubernetes and the pool; print a Role with the missing rights. The flags "
            "below are for this."
        ),
    ] = Switch.FALSE
    kubeconfig: Kubeconfig = None
    as_user: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="USER",
            help="Act as this user, as kubectl does: system:serviceaccount:NAMESPACE:NAME for the picker's account.",
        ),
    ] = None
    pool_name: Annotated[str | None, typer.Option(metavar="NAME", help="The InferencePool.")] = None
    pool_namespace: PoolNamespace = None
    pool_group: PoolGroup = POOL_GROUP
    endpoint_selector: EndpointSelector = None
    endpoint_target_ports: EndpointTargetPorts = None
    ha_enable_leader_election: Annotated[Switch, switch_option("Try what leader election needs too.")] = Switch.FALSE


@dataclass(frozen=True, kw_only=True)
class ConfigList:
    """List the ready-made configurations."""


@dataclass(frozen=True, kw_only=True)
class ConfigShow:
    """Print a ready-made configuration. To edit it: `epp config show adaptive > config.yaml`."""

    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `epp config list`.")]


@dataclass(frozen=True, kw_only=True)
class ConfigSchema:
    """Print the JSON schema of configurations. Plugins of other installed packages are in it too."""


class PluginOutput(StrEnum):
    """Output formats of `epp plugins`."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    DATA = "data"


@dataclass(frozen=True, kw_only=True)
class Plugins:
    """List plugin types with parameters and defaults."""

    types: Annotated[list[str] | None, typer.Argument(metavar="TYPE", help="Show only these, in full.")] = None
    output: Annotated[
        PluginOutput,
        typer.Option(help="json for programs; markdown for a reference of plugins; data for the inputs of plugins."),
    ] = PluginOutput.TEXT


@dataclass(frozen=True, kw_only=True)
class Accelerators:
    """Show the hardware of each endpoint: accelerator, class, slice, cost per hour, capacity and sources."""

    endpoints: Endpoints = None
    config_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="An EndpointPickerConfig file, with accelerator-data-source and discovery."),
    ] = None
    objects: Annotated[
        str,
        typer.Option(
            metavar="PATH,...", help="Files or directories of cluster objects, besides those of --config-file."
        ),
    ] = ""
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prices of accelerators and machines in US dollars an hour, on demand and spot, by region: YAML, JSON "
            "or CSV, in place of the file in --config-file.",
        ),
    ] = None
    fit: Annotated[Switch, switch_option("Show how many more slices of each MIG profile fit on each GPU.")] = (
        Switch.FALSE
    )
    output: OutputFormat = Output.TEXT


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Show why a request went where it went: what each filter dropped, what each scorer said, and how it ended."""

    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="The decision, by its id; by default the latest one.")
    ] = None
    last: Annotated[Switch, switch_option("Show the latest decision.")] = Switch.FALSE
    request: Annotated[
        str | None, typer.Option(metavar="REQUEST_ID", help="Show the decision of the request with this x-request-id.")
    ] = None
    admin: Annotated[str, typer.Option(metavar="URL", help="The admin port of the picker.")] = "http://127.0.0.1:9091"
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="File with the token of the admin port.")] = (
        None
    )
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file that --decision-file wrote, instead of a running picker."),
    ] = None
    output: OutputFormat = Output.TEXT


@dataclass(frozen=True, kw_only=True)
class Simulate:
    """Take recorded decisions again with another configuration: how many picks differ, by class, cost and load."""

    config: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The configuration under which they were recorded: a file, or the name of a ready-made one.",
        ),
    ]
    against: Annotated[str, typer.Option(metavar="FILE", help="The other one.")]
    decisions: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Output of --decision-file, or an answer of /api/decisions; - for standard input."
        ),
    ]
    limit: Annotated[int, count_option("Decisions that are taken again, the last ones.")] = 10_000
    output: OutputFormat = Output.TEXT
    allow_experimental_plugins: Experimental = Switch.FALSE
    allow_plugin_modules: PluginModules = ""


@dataclass(frozen=True, kw_only=True)
class SimServer:
    """Run a simulated vLLM server: its API, its metrics and its timing, without a GPU."""

    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, port_option("Port to listen on; 0 for any free one.")] = 8000
    preset: Annotated[Literal["h100", "a100", "a100-3g.20gb", "t4"], typer.Option(help="The simulated machine.")] = (
        "a100"
    )
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Value of x-sim-server in every answer; the preset by default.")
    ] = None
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Name of the model.")] = None
    lora: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Name of a LoRA adapter; may be repeated.")] = (
        None
    )
    max_lora: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Most adapters that run at the same time.", min=1)
    ] = None
    max_num_seqs: Annotated[int | None, typer.Option(metavar="COUNT", help="Most requests in a batch.", min=1)] = None
    num_gpu_blocks: Annotated[int | None, typer.Option(metavar="COUNT", help="KV blocks.", min=1)] = None
    time_scale: Annotated[
        float | None, typer.Option(metavar="FACTOR", help="Factor on all durations: 0.1 is ten times as fast.")
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Equal seeds give equal answers to equal prompts.")
    ] = None
    no_metrics: Annotated[Switch, switch_option("Answer /metrics with 404.")] = Switch.FALSE
    v: Verbosity = 0


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Watch LLM requests reach simulated servers of different speed and price, behind a real Envoy."""

    listen: Listen = "127.0.0.1:8080"
    duration: Annotated[float | None, duration_option("Exit after this time, such as 30s.")] = None
    traffic: Annotated[
        float,
        typer.Option(metavar="RATE", help="Most requests a second that the demo sends; 0 for none.", min=0, max=100),
    ] = 12.0
    clusters: Annotated[
        Switch, switch_option("Two clusters: one of them fills up, then fails, and comes back, again and again.")
    ] = Switch.FALSE
    tenants: Annotated[
        Switch, switch_option("Two tenants: one of them sends more than the servers can serve, again and again.")
    ] = Switch.FALSE
    config_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="An EndpointPickerConfig file instead of the demo's own; edit it while the demo runs."
        ),
    ] = None
    admin_port: AdminPort = None
    """None for 9091 if it is free, otherwise any free port."""
    metrics_port: MetricsPort = None
    """None for no page."""
    v: Verbosity = 0


COMMANDS: Mapping[str, type[Any]] = {
    "serve": Serve,
    "gateway": Gateway,
    "check": Check,
    "config list": ConfigList,
    "config show": ConfigShow,
    "config schema": ConfigSchema,
    "plugins": Plugins,
    "accelerators": Accelerators,
    "explain": Explain,
    "simulate": Simulate,
    "sim-server": SimServer,
    "demo": Demo,
}
"""The flags of each command, by name; a name of two words begins with its group."""

GROUPS: Mapping[str, str] = {"config": "Print ready-made configurations, or the schema of configurations."}
"""The help of each group."""
