# SPDX-License-Identifier: Apache-2.0
"""The commands: help, flags and defaults. The code of a command is imported when it runs.

A command runs the function of its name in the module of its name, with its flags; the commands of a group share a
module.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeAlias

from epp.cli import options
from epp.cli.options import Output, Seconds, argument
from epp.cli.picker_flags import Gateway, Serve
from epp.runtime.flags import COUNT, DURATION, PORT, SWITCH, Kind, flag
from epp.telemetry.settings import admin_port_flag, metrics_port_flag


@dataclass(frozen=True, kw_only=True)
class Check:
    """Validate configuration files and show their plugins, or check the rights of a picker in a cluster. Exit
    code 1: a file is invalid, or the picker would not serve.
    """  # noqa: D205  one paragraph is the help

    files: list[Path] | None = argument(None, "EndpointPickerConfig files, directories, or - for stdin.", "FILE")
    output: Output = options.output_flag()
    strict: bool = flag(False, "Exit with code 2 if there are warnings.", SWITCH)
    allow_experimental_plugins: bool = options.experimental_flag()
    allow_plugin_modules: str = options.plugin_modules_flag()
    cluster: bool = flag(False, "Check a cluster with the flags below; print a Role with missing rights.", SWITCH)
    kubeconfig: Path | None = options.kubeconfig_flag()
    as_user: str | None = flag(
        None, "User to impersonate, such as system:serviceaccount:NAMESPACE:NAME of the picker.", "USER", name="--as"
    )
    pool_name: str | None = flag(None, "The InferencePool, or several, with commas or repeated flags.", "POOL,...")
    pool_selector: str | None = flag(None, "The labels of the InferencePools of a picker of several.", "SELECTOR")
    pool_config_dir: Path | None = flag(
        None, "With several pools, also without --cluster: directory with NAME.yaml; FILE is for others.", "DIRECTORY"
    )
    pool_namespace: str | None = options.pool_namespace_flag()
    pool_group: str = options.pool_group_flag()
    endpoint_selector: str | None = options.endpoint_selector_flag()
    endpoint_target_ports: str | None = options.endpoint_target_ports_flag()
    ha_enable_leader_election: bool = flag(False, "Also check the access that leader election needs.", SWITCH)


@dataclass(frozen=True, kw_only=True)
class ConfigList:
    """List the ready-made configurations."""


@dataclass(frozen=True, kw_only=True)
class ConfigShow:
    """Print a ready-made configuration. To edit it: `epp config show adaptive > config.yaml`."""

    name: str = argument(..., "A name of `epp config list`.", "NAME")


@dataclass(frozen=True, kw_only=True)
class ConfigSchema:
    """Print the JSON schema of configurations. It includes the plugins of other installed packages."""


class PluginOutput(StrEnum):
    """Output formats of `epp plugins`."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    DATA = "data"


@dataclass(frozen=True, kw_only=True)
class Plugins:
    """List plugin types with parameters and defaults."""

    types: list[str] | None = argument(None, "Show only these types, in full.", "TYPE")
    output: PluginOutput = flag(
        PluginOutput.TEXT, "json for programs; markdown for a reference of plugins; data for the inputs of plugins."
    )


@dataclass(frozen=True, kw_only=True)
class Accelerators:
    """Show the hardware of each endpoint: accelerator, class, slice, cost per hour, capacity and sources."""

    endpoints: list[str] | None = options.endpoints_flag()
    config_file: Path | None = flag(None, "Configuration with accelerator-data-source and discovery.", "FILE")
    objects: str = flag("", "Files or directories of cluster objects, besides those of --config-file.", "PATH,...")
    prices: Path | None = flag(
        None,
        "Prices of accelerators and machines in US dollars an hour, on demand and spot, by region: YAML, JSON "
        "or CSV, in place of the file in --config-file.",
        "FILE",
    )
    fit: bool = flag(False, "Show how many more slices of each MIG profile fit on each GPU.", SWITCH)
    output: Output = options.output_flag()


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Show why an endpoint was picked for a request: dropped endpoints, scores, and the end of the request."""

    id: str | None = argument(None, "Id of the decision; by default the latest one.", "ID")
    last: bool = flag(False, "Show the latest decision.", SWITCH)
    request: str | None = flag(None, "Show the decision for the request with this x-request-id.", "REQUEST_ID")
    admin: str = flag("http://127.0.0.1:9091", "The admin port of the picker.", "URL")
    token_file: Path | None = flag(None, "File with the token of the admin port.", "FILE")
    file: Path | None = flag(None, "A file that --decision-file wrote, instead of a running picker.", "FILE")
    output: Output = options.output_flag()


TraceFormat: TypeAlias = Literal["jsonl", "csv", "mooncake", "azure", "burstgpt", "decisions", "sharegpt"]


def _presets() -> list[str]:
    from epp.lab.sim.profile import PRESETS  # noqa: PLC0415  heavy

    return list(PRESETS)


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """Flags of all replays of a trace on simulated servers."""

    profile: list[str] | None = flag(
        None,
        "Profile of a simulated server: KEY is the name of an endpoint or an accelerator class, the value a preset of "
        "sim-server or a YAML file; may be repeated. By default, the preset with the name of the class.",
        "KEY=PRESET",
    )
    prices: Path | None = flag(None, "Prices of accelerators in US dollars an hour.", "FILE")
    trace_format: TraceFormat | None = flag(None, "Format of the trace; by default detected from its first lines.")
    trace_rate: float | None = flag(None, "Requests a second, for a trace without times (sharegpt).", "RATE")
    slo: str = flag("", "Default latency targets of requests, such as ttft=500ms,tpot=50ms.", "NAME=DURATION,...")
    rate_scale: float = flag(1.0, "Factor on the rate of the trace.", "FACTOR", min=0.001, max=1000)
    pickers: int = flag(1, "Number of pickers that run in parallel; each knows only its own requests.", COUNT, max=64)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Replay a trace with one or several configurations, in virtual time and on simulated servers: latency, goodput,
    dollars and cache hits. Or repeat recorded decisions: the number of picks that differ, by class, cost and load.
    """  # noqa: D205  one paragraph is the help

    trace: Path = argument(..., "The requests, in a format of `epp trace show`.", "TRACE")
    endpoints: Path | None = flag(None, "The servers, as for file-discovery. Required without --decisions.", "FILE")
    config: list[str] = flag(
        ..., "A configuration: a file, or the name of a ready-made one; may be repeated to compare the others "
        "with the first.", "FILE"
    )  # fmt: skip
    decisions: bool = flag(
        False,
        "Repeat the decisions in TRACE with the recorded load: TRACE is output of --decision-file, a response of "
        "/api/decisions, or - for standard input. The first of two configurations is the one under which they were "
        "recorded. Only the flags --limit, --output and --allow-* apply.",
        SWITCH,
    )
    replayed: Replayed = field(default_factory=Replayed)
    objects: str = flag("", "Files or directories of cluster objects: objectives, rewrites, quotas.", "PATH,...")
    seeds: int | None = flag(None, "Number of seeds; 5 by default, and 1 for more than 20,000 requests.", COUNT)
    limit: int | None = flag(None, "Maximum requests. With --decisions, the last ones; by default 10,000.", COUNT)
    duration: float | None = flag(None, "Length of the part of the trace that is replayed.", DURATION)
    timeout: float = flag(Seconds(60), "Time after which clients without a first token disconnect.", DURATION)
    shared_after: float | None = flag(None, "Delay of shared state, such as 20ms; not shared by default.", DURATION)
    report: Path | None = flag(None, "File for a report with plots, as one HTML file.", "FILE")
    output: Output = options.output_flag()
    allow_experimental_plugins: bool = options.experimental_flag()
    allow_plugin_modules: str = options.plugin_modules_flag()


@dataclass(frozen=True, kw_only=True)
class Tune:
    """Search for parameters and weights of a configuration that serve a trace better, try the best on the last third
    of the trace, and write the configuration if it is better there.
    """  # noqa: D205  one paragraph is the help

    trace: Path = argument(..., "The requests, in a format of `epp trace show`.", "TRACE")
    endpoints: Path = flag(..., "The servers, as for file-discovery.", "FILE")
    config: str = flag(..., "The configuration: a file, or the name of a ready-made one.", "FILE")
    objective: list[str] = flag(
        ...,
        "The figure to improve: p50, p90 or p99 of ttft, tpot or e2e, such as p90-ttft; goodput, dollars, and others. "
        "Give it twice for a Pareto front.",
        "FIGURE",
    )
    subject_to: list[str] | None = flag(
        None, "A condition to keep, such as 'p99 ttft <= 1s' or 'goodput >= 95%'; may be repeated.", "CONDITION"
    )
    also: list[str] | None = flag(
        None,
        "Plugin types that may replace a plugin, or `none` to leave it out: queue-scorer=load-aware-scorer,none; may "
        "be repeated.",
        "NAME=TYPE,...",
    )
    result: Path = flag(Path("tuned.yaml"), "File for the tuned configuration.", "FILE")
    report: Path | None = flag(None, "File for a report, in HTML.", "FILE")
    study: Path | None = flag(None, "File of trials, to continue them later; by default next to --result.", "FILE")
    trials: int = flag(100, "Total number of trials, including those of earlier calls.", COUNT)
    budget: float = flag(Seconds(600), "Time limit for trials.", DURATION)
    jobs: int | None = flag(None, "Processes that run trials; by default one for each CPU.", COUNT, max=256)
    seed: int = flag(0, "Seed of the random choices.", "NUMBER", min=0)
    replayed: Replayed = field(default_factory=Replayed)
    output: Output = options.output_flag()
    allow_experimental_plugins: bool = options.experimental_flag()
    allow_plugin_modules: str = options.plugin_modules_flag()


@dataclass(frozen=True, kw_only=True)
class TraceShow:
    """Show the content of a trace: rate, burstiness, lengths, shared prefixes, sessions, models and tenants."""

    trace: Path = argument(..., "A trace of requests, plain or compressed with gzip or zstd.", "TRACE")
    format: TraceFormat | None = flag(None, "Format of the trace; by default detected from its first lines.")
    rate: float | None = flag(None, "Requests a second, for a trace without times (sharegpt).", "RATE")
    seed: int = flag(0, "Seed of the times for --rate.", "NUMBER")
    output: Output = options.output_flag()


@dataclass(frozen=True, kw_only=True)
class TraceMake:
    """Make a trace with the statistics of published ones: JSON lines, on standard output."""

    like: Literal["azure-code", "azure-conv", "mooncake", "agents", "batch", "chat"] = flag(
        ..., "The kind of traffic, as docs/traces.md describes it."
    )
    rate: float = flag(..., "Requests a second, in the mean.", "RATE")
    duration: float = flag(600.0, "Length of the trace.", DURATION)
    seed: int = flag(0, "Equal seeds give equal traces.", "NUMBER")
    output: Path | None = flag(None, "File to write, compressed if its name ends in .gz or .zst.", "FILE")


@dataclass(frozen=True, kw_only=True)
class SimServer:
    """Run a simulated vLLM server: its API, its metrics and its timing, without a GPU."""

    host: str = flag("127.0.0.1", "Address to listen on.", "HOST")
    port: int = flag(8000, "Port to listen on; 0 for any free one.", PORT)
    preset: str = flag(
        "a100",
        "The simulated machine: h100, a100, a100-3g.20gb, t4, or a file that epp calibrate wrote.",
        Kind("NAME|FILE", autocompletion=_presets),
    )
    name: str | None = flag(None, "Value of x-sim-server in every answer; the preset by default.", "NAME")
    model: str | None = flag(None, "Name of the model.", "MODEL")
    lora: list[str] | None = flag(None, "Name of a LoRA adapter; may be repeated.", "NAME")
    max_lora: int | None = flag(None, "Maximum number of adapters that run at the same time.", "COUNT", min=1)
    max_num_seqs: int | None = flag(None, "Maximum number of requests in a batch.", "COUNT", min=1)
    num_gpu_blocks: int | None = flag(None, "Number of KV blocks.", "COUNT", min=1)
    time_scale: float | None = flag(None, "Factor on all durations: 0.1 is ten times as fast.", "FACTOR")
    seed: int | None = flag(None, "Equal seeds give equal answers to equal prompts.", "NUMBER")
    no_metrics: bool = flag(False, "Answer /metrics with 404.", SWITCH)
    v: int = options.verbosity_flag(0)


@dataclass(frozen=True, kw_only=True)
class Calibrate:
    """Measure a model server and write a server profile, which `epp sim-server --preset` reads."""

    url: str = argument(..., "Address of the server, such as http://server:8000.", "URL")
    model: str = flag(..., "Name of the model.", "MODEL")
    budget: float = flag(60.0, "Time limit for the measurement, such as 60s.", DURATION)
    api_key_file: Path | None = flag(None, "File with a key, sent as a bearer token.", "FILE")
    output: Path | None = flag(None, "File to write; standard output by default.", "FILE")


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Watch LLM requests reach simulated servers of different speed and price, behind a real Envoy."""

    listen: str = options.listen_flag()
    duration: float | None = flag(None, "Exit after this time, such as 30s.", DURATION)
    traffic: float = flag(12.0, "Maximum rate of requests that the demo sends; 0 for none.", "RATE", min=0, max=100)
    clusters: bool = flag(False, "Show two clusters: one of them repeatedly fills up, fails and recovers.", SWITCH)
    tenants: bool = flag(False, "Show two tenants: one of them repeatedly sends too many requests.", SWITCH)
    config_file: Path | None = flag(None, "A configuration instead of the demo's own; it may be edited.", "FILE")
    admin_port: int | None = admin_port_flag()
    """None for 9091, or any free port if it is in use."""
    metrics_port: int | None = metrics_port_flag()
    """None for no page."""
    v: int = options.verbosity_flag(0)


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
    "replay": Replay,
    "tune": Tune,
    "trace show": TraceShow,
    "trace make": TraceMake,
    "sim-server": SimServer,
    "calibrate": Calibrate,
    "demo": Demo,
}
"""The flags of each command, by name; a name of two words begins with its group."""

GROUPS: Mapping[str, str] = {
    "config": "Print ready-made configurations, or the schema of configurations.",
    "trace": "Show or make traces of requests.",
}
"""The help of each group."""
