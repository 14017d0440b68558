# SPDX-License-Identifier: Apache-2.0
"""The pool in the files of --objects, where nothing else names the endpoints."""

from epp.cli.inputs import split_list
from epp.cli.picker_flags import PickerFlags, Serve
from epp.config import LoadedConfig
from epp.framework import ConfigurationError, SystemClock
from epp.pool.discovery import PodFileDiscovery, PodTarget
from epp.pool.discovery.pod_files import PodFileParameters

FLAG = "--objects"


def is_in_files(flags: PickerFlags, config: LoadedConfig | None) -> bool:
    """Return whether the endpoints are the pods in the files of --objects."""
    if not split_list(flags.objects) or flags.endpoints is not None:
        return False
    if config is not None and config.model.data_layer.discovery is not None:
        return False
    in_cluster = isinstance(flags, Serve) and (flags.kubeconfig is not None or bool(flags.ha_enable_leader_election))
    return not in_cluster


def read_file_pool(flags: PickerFlags, pods: PodTarget | None = None) -> PodFileDiscovery:
    """Return the pods in the files, those with the labels if there are any; raises ConfigurationError."""
    namespace = flags.pool_namespace if isinstance(flags, Serve) else None
    try:
        parameters = PodFileParameters(
            paths=split_list(flags.objects),
            pool="" if pods is not None else flags.pool_name or "",
            namespace=namespace or "",
            selector={} if pods is None else dict(pods.labels),
            target_ports=() if pods is None else pods.ports,
        )
    except ValueError as error:
        raise ConfigurationError(f"{FLAG}: {error}") from error
    return PodFileDiscovery(parameters, clock=SystemClock(), setting=FLAG)
