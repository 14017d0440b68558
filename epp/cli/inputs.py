# SPDX-License-Identifier: Apache-2.0
"""Configurations, endpoints, objects and lists that flags name."""

from collections.abc import Sequence
from pathlib import Path

from epp.cli.picker_flags import PickerFlags, Serve
from epp.config import LoadedConfig, load_file, load_text
from epp.config.load import sample_texts
from epp.config.sources import read_file
from epp.extproc.headers import DECISION_RECORD_GROUP, IgnoredHeaders
from epp.framework import ConfigurationError, SystemClock
from epp.framework.datalayer import Discovery
from epp.framework.endpoint import EndpointTrust
from epp.framework.messages import hint_at
from epp.framework.plugin import Parameters
from epp.pool.discovery import PodFileDiscovery, PodTarget, StaticDiscovery, Target, parse_targets
from epp.pool.discovery.pod_files import PodFileParameters
from epp.routing.policies import PolicyFiles
from epp.runtime.addresses import is_ip, parse_host

FLAG = "--objects"


def split_list(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list."""
    return tuple(part for each in text.split(",") if (part := each.strip()))


def read_config(file: Path | None, text: str | None) -> LoadedConfig | None:
    """Return the configuration in the file or the text, None for neither; raises ConfigurationError."""
    if file is not None and text is not None:
        raise ConfigurationError("--config-file and --config-text exclude each other: give one")
    if file is not None:
        return load_file(file)
    return None if text is None else load_text(text)


def read_named_config(name: str) -> LoadedConfig:
    """Return the configuration in a file, or the ready-made one of that name; raises ConfigurationError."""
    path, samples = Path(name), sample_texts()
    if not path.exists() and name.removesuffix(".yaml") in samples:
        return load_text(samples[name.removesuffix(".yaml")], name)
    if not path.exists() and path.name == name and not path.suffix:
        raise ConfigurationError(f"there is no file {name!r}, nor a ready-made configuration; {hint_at(name, samples)}")
    return load_text(read_file(path), name)


def read_endpoints(lists: Sequence[str] | None) -> Discovery[Parameters] | None:
    """Return the pool of --endpoints, None without it; raises ConfigurationError."""
    return None if lists is None else StaticDiscovery(read_targets(lists))


def read_targets(lists: Sequence[str] | None) -> tuple[Target, ...]:
    """Return the endpoints of --endpoints, none without it; raises ConfigurationError."""
    if lists is None:
        return ()
    try:
        return parse_targets(",".join(lists))
    except ValueError as error:
        raise ConfigurationError(f"--endpoints: {error}") from error


def read_policies(paths: str, pool_name: str | None) -> PolicyFiles | None:
    """Return the objects of --objects for a pool, or for any; None without the flag; raises ConfigurationError."""
    given = split_list(paths)
    return PolicyFiles(given, SystemClock(), pool_name=pool_name or "") if given else None


def read_trust(ca_file: Path | None, *, skip_verify: bool) -> EndpointTrust:
    """Return how certificates of endpoints are verified; raises ConfigurationError for flags that contradict."""
    if ca_file is not None and skip_verify:
        raise ConfigurationError(
            "--endpoint-ca-file has no effect with --endpoint-insecure-skip-verify: leave one of them out"
        )
    return EndpointTrust(None if ca_file is None else ca_file.absolute(), verify=not skip_verify)


def read_ignored_headers(names: str, gateways: str) -> IgnoredHeaders | None:
    """Return the headers of --ignore-client-headers, obeyed only from --trusted-gateways; raises ConfigurationError.

    Only these gateways may request records of decisions.
    """
    if not names.strip() and not gateways.strip():
        return None
    try:
        ignored = IgnoredHeaders.parse((*split_list(names), DECISION_RECORD_GROUP))
    except ValueError as error:
        raise ConfigurationError(f"--ignore-client-headers: {error}") from error
    try:
        return ignored.except_from(split_list(gateways))
    except ValueError as error:
        raise ConfigurationError(f"--trusted-gateways: {error}") from error


def read_bind_address(text: str, flag: str = "--bind-address") -> str:
    """Return the IP address of a flag; raises ConfigurationError."""
    host = "127.0.0.1" if text == "localhost" else text.removeprefix("[").removesuffix("]")
    if not is_ip(host):
        raise ConfigurationError(f"{flag}: {text!r} is not an IP address: write one of this machine, without a port")
    return parse_host(host)


def is_in_files(flags: PickerFlags, config: LoadedConfig | None) -> bool:
    """Whether the endpoints are the pods in the files of --objects: flags and configuration name no other source."""
    if not split_list(flags.objects) or flags.endpoints is not None:
        return False
    if config is not None and config.model.names_all_endpoints:
        return False
    in_cluster = isinstance(flags, Serve) and (flags.kubeconfig is not None or flags.ha_enable_leader_election)
    return not in_cluster


def read_file_pool(flags: PickerFlags, pods: PodTarget | None = None) -> PodFileDiscovery:
    """Return the pods in the files, only those with the labels of `pods` if given; raises ConfigurationError."""
    namespace = flags.pool_namespace if isinstance(flags, Serve) else None
    try:
        parameters = PodFileParameters(
            paths=split_list(flags.objects),
            pool="" if pods is not None else flags.pool_name or "",
            namespace=namespace or "",
            selector="" if pods is None else str(pods.labels),
            target_ports=() if pods is None else pods.ports,
        )
    except ValueError as error:
        raise ConfigurationError(f"{FLAG}: {error}") from error
    return PodFileDiscovery(parameters, clock=SystemClock(), setting=FLAG)
