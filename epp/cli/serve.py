# SPDX-License-Identifier: Apache-2.0
"""`epp serve`: the settings of a picker from its flags, and the process."""

import asyncio
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from epp.app import DEFAULT_POOL_NAME, Picker, PickerSettings, PoolChoice, Pools
from epp.cli.input_output import (
    is_in_files,
    read_bind_address,
    read_config,
    read_endpoints,
    read_file_pool,
    read_ignored_headers,
    read_policies,
    split_list,
)
from epp.cli.kubernetes import is_in_cluster, pool_title, read_kubernetes, read_pool_choice, read_source
from epp.cli.picker_flags import PickerFlags, Serve
from epp.cli.running import run
from epp.config import LoadedConfig, load_text
from epp.extproc.settings import ServerSettings, Transport
from epp.framework import ConfigurationError
from epp.framework.messages import install_command
from epp.pool.discovery import PodTarget
from epp.runtime.addresses import EVERYWHERE, HostPort
from epp.runtime.supervisor import first_of, freeze
from epp.sharing.link import Link, link_of_environment, number_of_environment
from epp.telemetry import logs
from epp.telemetry.logs import LogWriter
from epp.telemetry.request_log import request_log
from epp.telemetry.settings import DecisionSettings, PageSettings
from epp.telemetry.tracing import TracingError, read_environment

if TYPE_CHECKING:
    from epp.telemetry.tracing.exporting import Tracing

_log = structlog.get_logger()


def configure_logs(flags: PickerFlags) -> LogWriter:
    """Set up log lines for the whole process; return their writer."""
    return logs.configure(_verbosity(flags), log_style(flags), worker=number_of_environment())


def picker_settings(flags: PickerFlags, server: ServerSettings, *, host: str, log: LogWriter) -> PickerSettings:
    """Return the settings, with the metrics page on that host; raises ConfigurationError."""
    link = link_of_environment()
    config = read_config(flags.config_file, flags.config_text) if link is None or link.config is None else None
    if link is not None and link.config is not None:
        config = load_text(link.config.text, str(flags.config_file))
    file_pool = None
    if is_in_files(flags, config):
        pods = read_source(flags) if isinstance(flags, Serve) else None
        file_pool = read_file_pool(flags, pods if isinstance(pods, PodTarget) else None)
    tracing = read_tracing(flags)
    gateways = flags.trusted_gateways if isinstance(flags, Serve) else ""
    if flags.workers > 1 and not hasattr(socket, "send_fds"):
        raise ConfigurationError("--workers: this system cannot pass connections to other processes: leave it out")
    if flags.workers > 1 and flags.transport is Transport.GRPCIO:
        raise ConfigurationError("--workers: --transport grpcio cannot accept passed connections: leave it out")
    return PickerSettings(
        server=server,
        workers=flags.workers,
        link=link,
        tracing=tracing,
        config=config,
        watch_config=flags.config_file,
        watches_config=flags.watch_config_file,
        experimental=flags.allow_experimental_plugins,
        plugin_modules=split_list(flags.allow_plugin_modules),
        discovery=file_pool or read_endpoints(flags.endpoints),
        object_paths=() if file_pool is None else file_pool.parameters.paths,
        any_pool_object_paths=split_list(flags.objects),
        policies=read_policies(flags.objects, flags.pool_name),
        pool_name=flags.pool_name or DEFAULT_POOL_NAME,
        page=_page(flags, config, host),
        admin=replace(flags.admin, host=read_bind_address(flags.admin.host, "--admin-host")),
        decisions=_decisions(flags),
        refresh_metrics_seconds=flags.refresh_metrics_interval,
        page_limits=flags.page_limits,
        refresh_prometheus_seconds=flags.refresh_prometheus_metrics_interval,
        stale_metrics_seconds=flags.metrics_staleness_threshold,
        reservation_seconds=flags.reservation_ttl or math.inf,
        inherited_seconds=flags.inherited_requests_ttl,
        stall_seconds=flags.stall_threshold,
        sharing=flags.sharing,
        outliers=flags.outliers,
        responses=flags.responses,
        observers=request_log(_verbosity(flags), flags.request_log_sample),
        ignored_headers=read_ignored_headers(flags.ignore_client_headers, gateways),
        lost_log_lines=lambda: log.lost,
        terminal=logs.terminal(log, log_style(flags)),
        before_ready=freeze,
    )


def _verbosity(flags: PickerFlags) -> int:
    return flags.v if flags.zap_log_level is None else flags.zap_log_level


def log_style(flags: PickerFlags) -> logs.LogStyle:
    """Return the form of log lines that the flags of zap select."""
    encoder = flags.zap_encoder
    if encoder is None and flags.zap_devel is not None:
        encoder = "console" if flags.zap_devel else "json"
    return logs.LogStyle(encoder, flags.zap_time_encoding, tracebacks=flags.zap_stacktrace_level != "panic")


def _decisions(flags: PickerFlags) -> DecisionSettings | None:
    """Return the settings of decision records; None if they could not be read. Raises ConfigurationError."""
    decisions = flags.decisions
    if decisions.prefixes and decisions.file is None:
        raise ConfigurationError("--decision-file-prefixes has no effect without --decision-file: add it")
    if decisions.file is None and (flags.admin.port is None or not decisions.buffer):
        if decisions.sample_rate:
            raise ConfigurationError(
                "--decision-sample-rate has no effect without --admin-port, which shows the decisions of "
                "--decision-buffer, and without --decision-file: add one of them"
            )
        return None
    return replace(decisions, asked_by_header=isinstance(flags, Serve) and bool(flags.trusted_gateways.strip()))


def _page(flags: PickerFlags, config: LoadedConfig | None, host: str) -> PageSettings:
    page, reviews_tokens = flags.page, flags.page.endpoint_auth
    if reviews_tokens is None:
        without_token = page.port is not None and page.token_file is None
        reviews_tokens = isinstance(flags, Serve) and without_token and is_in_cluster(flags, config)
    if page.cert_dir is not None and page.client_ca_file is None and page.token_file is None and not reviews_tokens:
        raise ConfigurationError(
            "--metrics-cert-dir: TLS alone does not authenticate clients: add --metrics-endpoint-auth, "
            "--metrics-token-file or --metrics-client-ca-file"
        )
    return replace(page, host=host, endpoint_auth=reviews_tokens)


def read_tracing(flags: PickerFlags, variables: Mapping[str, str] = os.environ) -> "Tracing | None":
    """Return the tracing of requests; None without an exporter or with --tracing=false.

    Raises ConfigurationError if OTEL_TRACES_EXPORTER is set but cannot be used. Only logs a warning if just the address
    of a collector is set, because that may be for other programs.
    """
    if not flags.tracing:
        return None
    try:
        if (settings := read_environment(variables)) is None:
            return None
        from epp.telemetry.tracing.exporting import Tracing  # noqa: PLC0415  a package that only tracing needs

        return Tracing(settings)
    except (TracingError, ImportError) as error:
        problem = str(error)
        if isinstance(error, ImportError):
            problem = f"{error.name} is not installed: {install_command('tracing')}"
        if variables.get("OTEL_TRACES_EXPORTER"):
            raise ConfigurationError(f"requests cannot be traced: {problem}; or give --tracing=false") from error
        _log.warning("requests are not traced", reason=problem, remedy="correct it, or give --tracing=false")
        return None


def serve(flags: Serve) -> None:
    writer = configure_logs(flags)

    async def work(stop: asyncio.Event) -> None:
        host = EVERYWHERE if flags.bind_address is None else read_bind_address(flags.bind_address)
        server = replace(
            flags.server,
            address=str(HostPort(host, flags.grpc_port)),
            health_address=str(HostPort(host, flags.grpc_health_port)),
            transport=flags.transport,
            budgets=flags.budgets,
        )
        picker: Picker | Pools
        choice = read_pool_choice(flags)
        if choice is not None:
            picker = _pools(flags, choice, server, host, writer)
        else:
            picker = Picker(_settings(flags, server, host, writer))
            if picker.link is not None:
                await work_for(picker, picker.link)
                return
        if not await first_of(picker.start(), stop.wait()):  # stopped while it waits for the API server of its cluster
            return
        await stop.wait()
        stop.clear()  # the next signal ends the drain
        await picker.stop(enough=stop)

    run(work, ConfigurationError)


def _settings(flags: Serve, server: ServerSettings, host: str, writer: LogWriter) -> PickerSettings:
    settings = picker_settings(flags, server, host=host, log=writer)
    return replace(
        settings,
        kubernetes=read_kubernetes(flags, settings.config),
        pool_name=pool_title(flags),
        emit_endpoint_scores=flags.emit_endpoint_scores,
        use_subset=not flags.disable_endpoint_subset_filter,
        drain_seconds=flags.drain_timeout,
        drain_quiet_seconds=flags.drain_quiet_period,
    )


def _pools(flags: Serve, choice: PoolChoice, server: ServerSettings, host: str, writer: LogWriter) -> Pools:
    any_name = min(choice.names, default="any")
    of_process = replace(flags, pool_name=any_name, config_file=None, config_text=None)
    process = _settings(of_process, server, host, writer)

    def settings_of(name: str, port: int) -> PickerSettings:
        own = None if flags.pool_config_dir is None else flags.pool_config_dir / f"{name}.yaml"
        records = flags.decisions.file
        of_pool = replace(
            flags,
            pool_name=name,
            config_file=own if own is not None and own.exists() else flags.config_file,
            decisions=replace(flags.decisions, file=records and records.with_stem(f"{records.stem}-{name}")),
            tracing=False,  # that of the process
        )
        settings = _settings(of_pool, replace(server, address=str(HostPort(host, port))), host, writer)
        if settings.kubernetes is None:
            problem = "dataLayer.discovery of the configuration is for one pool"
            raise ConfigurationError(f"{problem}: leave it out, the endpoints are the pods of each InferencePool")
        files = (own, flags.config_file) if own is not None else (flags.config_file, None)
        return replace(settings, tracing=process.tracing, watch_config=files[0], default_config=files[1])

    return Pools(process, choice, settings_of)


async def work_for(picker: Picker, link: Link) -> None:
    """Run the picker of a worker until the main process ends it; signals have no effect."""
    if await first_of(picker.start(), link.ended.wait()):
        await link.ended.wait()
    await picker.stop(drain_seconds=0)
