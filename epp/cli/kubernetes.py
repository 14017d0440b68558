# SPDX-License-Identifier: Apache-2.0
"""The pool in a Kubernetes cluster, from flags and environment."""

import os
import re
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from socket import gethostname

import structlog

from epp.app import KubernetesSettings, PoolChoice
from epp.cli.commands import Check
from epp.cli.input_output import is_in_files, split_list
from epp.cli.picker_flags import Serve
from epp.config import LoadedConfig
from epp.framework import ConfigurationError
from epp.framework.endpoint import LabelSelector
from epp.kube.leader_election import LeaseSettings
from epp.kube.objects.inference import POOL_GROUP
from epp.pool.discovery import PodTarget, PoolName

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MOST_PORTS = 8
_MANY = 2
_PORTS = range(1, 65536)
_NUMBER = re.compile(r"[0-9]{1,5}")
_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_log = structlog.get_logger()
_POD_OF_DEPLOYMENT = re.compile(r"(.+)-[a-z0-9]{1,10}-[a-z0-9]{5}")


def read_kubernetes(flags: Serve, config: LoadedConfig | None) -> KubernetesSettings | None:
    """Return the pool in the cluster, None for another source of endpoints; raises ConfigurationError."""
    other = _other_source(flags, config)
    if not other and is_in_files(flags, config):
        _warn_of_unused(flags, in_files=True)
        return None
    source = None if other else read_source(flags)
    if flags.ha_enable_leader_election and source is None:
        raise ConfigurationError(
            "--ha-enable-leader-election needs a pool in Kubernetes, for the lease of its replicas: leave it out, or "
            f"give --pool-name{f' and leave {other} out' if other else ''}"
        )
    if other:
        if flags.endpoint_selector or flags.endpoint_target_ports:
            raise ConfigurationError(f"--endpoint-selector has no effect with {other}: leave one of them out")
        _warn_of_unused(flags)
        return None
    if source is None:
        raise ConfigurationError(
            "no endpoints to pick from: give --endpoints host:port,... or a configuration with dataLayer.discovery; or "
            "--objects with files of pods; or in Kubernetes --pool-name, or --endpoint-selector with "
            "--endpoint-target-ports"
        )
    if flags.objects:
        problem = "--objects has no effect with a pool in a cluster: objectives and rewrites are read from the cluster"
        raise ConfigurationError(problem, remedy="leave the flag out")
    namespace = read_namespace(flags)
    return KubernetesSettings(
        namespace=namespace,
        source=source,
        replica=f"{os.environ.get('POD_NAME') or gethostname()}_{token_hex(8)}",
        kubeconfig=flags.kubeconfig,
        lease=_lease(flags, namespace) if flags.ha_enable_leader_election else None,
    )


def read_pool_choice(flags: Serve | Check) -> PoolChoice | None:
    """Return the choice of several pools, None for one pool; raises ConfigurationError."""
    names = split_list(flags.pool_name or "")
    if len(names) < _MANY and not flags.pool_selector:
        if flags.pool_config_dir is not None:
            raise ConfigurationError("--pool-config-dir is for several pools: give --pool-selector or several names")
        return None
    if names and flags.pool_selector:
        raise ConfigurationError("--pool-name and --pool-selector cannot be combined: give one")
    of_one_pool = {
        "--endpoints": isinstance(flags, Serve) and flags.endpoints is not None,
        "--objects": isinstance(flags, Serve) and flags.objects,
        "--workers": isinstance(flags, Serve) and flags.workers > 1,
        "--endpoint-selector": flags.endpoint_selector or flags.endpoint_target_ports,
    }
    for flag, is_given in of_one_pool.items():
        if is_given:
            raise ConfigurationError(f"{flag} is for one pool: leave it out, or run a picker for each InferencePool")
    default, given = ("FILE", flags.files) if isinstance(flags, Check) else ("--config-file", flags.config_file)
    if flags.pool_config_dir is not None and not given:
        raise ConfigurationError(f"--pool-config-dir needs {default}, for pools without a file in the directory")
    any_pool, *_ = [_pool(replace(flags, pool_name=name)) for name in names or ("any",)]
    return PoolChoice(
        namespace=any_pool.namespace,
        names=frozenset(names),
        labels=None if flags.pool_selector is None else _labels(flags.pool_selector, "--pool-selector"),
        group=any_pool.group,
        kubeconfig=flags.kubeconfig,
    )


def is_in_cluster(flags: Serve, config: LoadedConfig | None) -> bool:
    """Whether the endpoints are pods of a cluster; raises ConfigurationError."""
    return not _other_source(flags, config) and not is_in_files(flags, config) and read_source(flags) is not None


def read_source(flags: Serve | Check) -> PoolName | PodTarget | None:
    """Return the named pool or pods, None for neither; raises ConfigurationError."""
    # an empty flag has no effect, as in llm-d-router
    selector, ports = flags.endpoint_selector or "", flags.endpoint_target_ports or ""
    if not selector and not ports:
        return _pool(flags) if flags.pool_name else None
    if flags.pool_name:
        raise ConfigurationError(
            "--pool-name and --endpoint-selector cannot be combined: the pods are those of an InferencePool, or "
            "those with labels; give one"
        )
    if not selector or not ports:
        missing = "--endpoint-target-ports" if selector else "--endpoint-selector"
        raise ConfigurationError(f"{missing} is missing: --endpoint-selector app=vllm --endpoint-target-ports 8000")
    return PodTarget(_labels(selector), _ports(ports))


def lease_name(flags: Check, namespace: str) -> str:
    """Return the name of the lease that all replicas of the pool share; empty without the name of one pool."""
    names = split_list(flags.pool_name or "")
    return _lease_name(namespace, names[0]) if len(names) == 1 else ""


def pool_title(flags: Serve) -> str:
    """Return the name of the pool in metrics and leases: its own, or that of the Deployment of this pod."""
    if flags.pool_name:
        return flags.pool_name
    pod = os.environ.get("POD_NAME", "") if flags.endpoint_selector else ""
    found = _POD_OF_DEPLOYMENT.fullmatch(pod)
    return found[1] if found else pod or "default"


def _pool(flags: Serve | Check) -> PoolName:
    name, group = flags.pool_name or "", flags.pool_group or POOL_GROUP
    if not _OBJECT_NAME.fullmatch(name):
        raise ConfigurationError(f"--pool-name: {name!r} is not the name of an object")
    if not _OBJECT_NAME.fullmatch(group):
        raise ConfigurationError(f"--pool-group: {group!r} is not an API group: leave it out for {POOL_GROUP}")
    return PoolName(name, read_namespace(flags), group)


def _warn_of_unused(flags: Serve, *, in_files: bool = False) -> None:
    """Warn about flags for a pool in a cluster: deployments may set them with other sources of endpoints."""
    given = {
        "--pool-namespace": flags.pool_namespace is not None and not in_files,
        "--pool-group": flags.pool_group != POOL_GROUP,
        "--kubeconfig": flags.kubeconfig is not None,
    }
    for flag in (flag for flag, is_given in given.items() if is_given):
        _log.warning("flag has no effect", flag=flag)


def _lease_name(namespace: str, pool: str) -> str:
    return f"epp-{namespace}-{pool}.llm-d.ai"


def _lease(flags: Serve, namespace: str) -> LeaseSettings:
    """Return the lease that all replicas of the pool share; raises ConfigurationError if its name is unknown."""
    pod = os.environ.get("POD_NAME", "")
    if not flags.pool_name and not _POD_OF_DEPLOYMENT.fullmatch(pod):
        raise ConfigurationError(
            f"--ha-enable-leader-election: POD_NAME is {pod!r}, not the name of a pod of a Deployment, which "
            "identifies the replicas without --pool-name: set it to metadata.name in the Deployment"
        )
    name = _lease_name(namespace, pool_title(flags))
    if not _OBJECT_NAME.fullmatch(name):
        raise ConfigurationError(
            f"--ha-enable-leader-election: {name!r} cannot be the name of a lease: choose a shorter name for the "
            "pool or its namespace, of lower-case letters, digits, - and ."
        )
    return LeaseSettings(name=name, namespace=namespace)


def _other_source(flags: Serve, config: LoadedConfig | None) -> str:
    if flags.endpoints is not None:
        return "--endpoints"
    in_file = config is not None and config.model.names_all_endpoints
    return "dataLayer.discovery of the configuration" if in_file else ""


def read_namespace(flags: Serve | Check) -> str:
    """Return the namespace of the flag, of $NAMESPACE, of this pod, or `default`; raises ConfigurationError."""
    named = flags.pool_namespace or os.environ.get("NAMESPACE", "")
    if not named:
        try:
            named = _NAMESPACE_FILE.read_text().strip()
        except (OSError, UnicodeDecodeError):
            named = ""
    named = named or "default"
    if not _OBJECT_NAME.fullmatch(named):
        raise ConfigurationError(f"--pool-namespace: {named!r} is not the name of a namespace")
    return named


def _labels(text: str, flag: str = "--endpoint-selector") -> LabelSelector:
    try:
        labels = LabelSelector.parse(text)
    except ValueError as error:
        raise ConfigurationError(f"{flag}: {error}") from None
    if not labels.requirements:
        raise ConfigurationError(f"{flag} is empty, and would select everything: write name=value")
    return labels


def _ports(text: str) -> tuple[int, ...]:
    words = split_list(text)
    ports = tuple(int(word) for word in words if _NUMBER.fullmatch(word))
    if len(ports) < len(words) or any(port not in _PORTS for port in ports):
        raise ConfigurationError(f"--endpoint-target-ports: {text!r}: write ports from 1 to 65535, with commas between")
    if not 1 <= len(ports) <= _MOST_PORTS or len(set(ports)) < len(ports):
        raise ConfigurationError(f"--endpoint-target-ports: {text!r}: write one to eight ports, each once")
    return ports
