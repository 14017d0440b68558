# SPDX-License-Identifier: Apache-2.0
"""Address and credentials of an API server, from a kubeconfig file or the service account of a pod; a client of it.

lightkube knows the formats, and authenticates; `kubeconfig.py` and this are the only modules that know it.
"""

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from epp.framework.errors import ConfigurationError
from epp.framework.messages import install_command
from epp.kube.errors import reason_of, refuse_access
from epp.kube.kubeconfig import read_kubeconfig

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import KubeConfig, SingleConfig

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_DEFAULT_FILE = Path(".kube/config")
_SERVICE_VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_MOST_CONNECTIONS = 200
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds until a silent connection is probed, between two probes, and how many may stay unanswered.

A watch may be silent for a minute: without probes, a server that is cut off looks like one without news.
"""


def read_config(kubeconfig: Path | None, service_account: Path = SERVICE_ACCOUNT) -> "SingleConfig":
    """Return the configuration in effect; raises ConfigurationError.

    In this order: the file that is given, that of KUBECONFIG, the service account of this pod, `~/.kube/config`.
    """
    try:
        from lightkube.config.models import User  # noqa: PLC0415  an optional dependency
    except ImportError as error:
        raise ConfigurationError(
            f"the package {error.name!r} is not installed, which talks to Kubernetes: {install_command('kubernetes')}"
        ) from error
    path = kubeconfig or _named_config()
    if path is None and (service_account / "token").exists():
        found = _of_service_account(service_account).get()
    else:
        found = read_kubeconfig(path or _default_config(service_account)).get()
    assert found is not None  # noqa: S101  both name a context
    return found if found.user is not None else found._replace(user=User())


def client_of(config: "SingleConfig", headers: Mapping[str, str] | None = None) -> "httpx2.AsyncClient":
    """Return a client without connections yet; raises ConfigurationError for unusable certificates or credentials."""
    import httpx2  # noqa: PLC0415  an optional dependency
    from lightkube.config.client_adapter import ConnectionParams  # noqa: PLC0415  the same
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415  the same

    try:
        params = ConnectionParams().httpx_params(config)
    except (ConfigError, OSError, ValueError) as error:  # ssl.SSLError is an OSError
        refuse_access(config.fname or config.cluster.server, f"{reason_of(error)}; correct certificates and keys")
    transport = httpx2.AsyncHTTPTransport(
        verify=params["verify"],
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=10),
        proxy=_proxy(config.cluster.server) if config.fname else None,
        socket_options=_socket_options(),
    )
    return httpx2.AsyncClient(base_url=params["base_url"], auth=params["auth"], headers=headers, transport=transport)


def credential_errors() -> tuple[type[Exception], ...]:
    """Return what a client raises whose token file cannot be read, or whose command does not print a token."""
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415  an optional dependency

    return (ConfigError, OSError, ValueError, KeyError, TypeError)


def _named_config() -> Path | None:
    named = os.environ.get("KUBECONFIG", "")
    if os.pathsep in named:
        raise ConfigurationError(
            f"KUBECONFIG names several files, {named}: name one, such as the output of `kubectl config view --flatten`"
        )
    return Path(named) if named else None


def _default_config(service_account: Path) -> Path:
    try:
        path = Path.home() / _DEFAULT_FILE
    except RuntimeError:  # a user without a home
        path = Path("/") / _DEFAULT_FILE
    if not path.exists():
        raise ConfigurationError(
            f"no access to Kubernetes: there is no service account in {service_account} and no {path}: run in a pod, "
            "or set --kubeconfig or KUBECONFIG to a file"
        )
    return path


def _of_service_account(directory: Path) -> "KubeConfig":
    from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415  an optional dependency
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415  the same

    missing = [name for name in _SERVICE_VARIABLES if not os.environ.get(name)]
    if missing:
        raise ConfigurationError(
            f"{directory} has a service account, but the environment has no {' and no '.join(missing)}: "
            "set it to the address of the API server, or set KUBECONFIG"
        )
    try:
        (directory / "ca.crt").open("rb").close()
        return KubeConfig.from_service_account(directory)
    except (ConfigError, OSError, ValueError) as error:
        refuse_access(directory, f"{reason_of(error)}; mount token, namespace and ca.crt, or set KUBECONFIG")


def _proxy(server: str) -> str | None:
    """Return the proxy that the environment names for a server; a pod reaches its own API server without one."""
    parts = urlsplit(server)
    proxies = getproxies()
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")


def _socket_options() -> Iterable[tuple[int, int, int]]:
    known = {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}
    return [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        *((socket.IPPROTO_TCP, option, value) for option, value in known.items()),
    ]
