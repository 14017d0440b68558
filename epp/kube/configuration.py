# SPDX-License-Identifier: Apache-2.0
"""Address and credentials of an API server, from a kubeconfig file or the service account of a pod."""

import os
import socket
import ssl
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import msgspec

from epp.framework.errors import ConfigurationError
from epp.framework.files import check_allowed
from epp.framework.messages import install_command
from epp.framework.plain_yaml import YamlTextError, load

if TYPE_CHECKING:
    import httpx2
    from lightkube.config.kubeconfig import KubeConfig, SingleConfig

_MOST_DEPTH = 50
_UNSUPPORTED = {
    "cluster": {
        "proxy-url": "set the environment variable HTTPS_PROXY instead",
        "tls-server-name": "write a server whose name is in its certificate",
    },
    "user": {"auth-provider": "use exec instead"},
}
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_DATA = ("certificate-authority-data", "client-certificate-data", "client-key-data")
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1beta1", "client.authentication.k8s.io/v1alpha1")
_REASON_LENGTH = 500
_CLIENT_ERRORS = {
    "ConnectTimeout": "no connection in time",
    "LocalProtocolError": "the token has invalid characters",
    "PoolTimeout": "too many requests are in progress",
    "ReadTimeout": "no response in time",
    "WriteTimeout": "the request could not be sent in time",
}
"""Messages for exceptions of the HTTP client whose own text is misleading or contains secrets."""
_BROKEN = "the connection broke"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SETTING = "--kubeconfig or KUBECONFIG"
"""Default name of the setting with the path of a kubeconfig, for messages."""
SECRET_KEYS = ("kubeconfig", "value")
"""Keys of the kubeconfig in a Secret: Open Cluster Management, then Cluster API."""
_DEFAULT_FILE = Path(".kube/config")
_SERVICE_VARIABLES = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_MOST_CONNECTIONS = 200
_KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Idle seconds before the first probe, seconds between probes, and unanswered probes before the connection is closed.

A watch may be silent for a minute. Without probes, a lost connection looks like a watch without events.
"""


def read_kubeconfig(path: Path, context_name: str = "", setting: str = SETTING) -> "KubeConfig":
    """Return a context of the file, by default the current one, without other entries; raises ConfigurationError.

    If the path is a directory, such as a mounted Secret, the first existing file of `SECRET_KEYS` is read.
    """
    path = path.expanduser()
    if path.is_dir():
        found = next((path / key for key in SECRET_KEYS if (path / key).exists()), None)
        if found is None:
            refuse_access(path, f"it has none of the files {', '.join(SECRET_KEYS)}: name a kubeconfig in {setting}")
        path = found
    try:
        check_allowed(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or reason_of(error)
        in_pod = ", or run in a pod" if setting == SETTING else ""
        refuse_access(path, f"{reason}; set {setting} to a kubeconfig file{in_pod}")
    return _read_text(text, path, context_name)


def read_secret(data: Mapping[str, str], title: str, key: str = "", context: str = "") -> "SingleConfig":
    """Return the configuration in the data of a Secret; raises ConfigurationError.

    The kubeconfig must not name files or run commands, because writers of the Secret have no access to the picker.
    """
    name = next((each for each in ((key,) if key else SECRET_KEYS) if each in data), None)
    if name is None:
        refuse_access(title, f"it has no key {key or ' or '.join(SECRET_KEYS)}: add the kubeconfig, or correct `key`")
    try:
        text = b64decode(data[name], validate=True).decode()
    except ValueError:  # including UnicodeDecodeError
        refuse_access(title, f"{name} is not base64 text: create it with `kubectl create secret generic --from-file`")
    return _with_user(_read_text(text, Path(f"{title}, key {name}"), context, is_file=False))


def _read_text(text: str, path: Path, context_name: str, *, is_file: bool = True) -> "KubeConfig":
    """Return a context of a kubeconfig; `path` is for messages, and for relative paths of a file."""
    from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415  an optional dependency

    document = _document(text, path)
    name = context_name or document.get("current-context")
    if not isinstance(name, str) or not name:
        refuse_access(path, "it has no current-context: set it with `kubectl config use-context`")
    wanted = f"context {name!r}" if context_name else f"current-context {name!r}"
    context = _named(document, "contexts", name, wanted, path)
    cluster_name, user_name = context.get("cluster"), context.get("user")
    cluster = _named(document, "clusters", cluster_name, f"context {name!r} with cluster {cluster_name!r}", path)
    user = _named(document, "users", user_name, f"context {name!r} with user {user_name!r}", path) if user_name else {}
    _check(cluster, user, path)
    if not is_file and (named := [each for each in (*_FILES, "exec") if cluster.get(each) or user.get(each)]):
        refuse_access(
            path, f"{named[0]} is not allowed here: include the content of files with `kubectl config view --flatten`"
        )
    cluster, user = _with_absolute_paths(cluster, path), _with_absolute_paths(user, path)
    try:
        return KubeConfig.from_dict(
            {
                "current-context": name,
                "contexts": [{"name": name, "context": context}],
                "clusters": [{"name": cluster_name, "cluster": cluster}],
                "users": [{"name": user_name, "user": user}],
            },
            fname=path,
        )
    except msgspec.ValidationError as error:
        refuse_access(path, f"context {name!r}: {error}; correct it")


def _document(text: str, path: Path) -> Mapping[str, object]:
    try:
        document = load(text, _MOST_DEPTH).data
    except YamlTextError as error:
        refuse_access(path, f"{error}; correct it")
    if not isinstance(document, dict):
        refuse_access(path, "is not a kubeconfig: create one with `kubectl config view --flatten --minify`")
    return document


def _named(document: Mapping[str, object], kind: str, name: object, wanted_by: str, path: Path) -> dict[str, object]:
    entries = document.get(kind)
    found = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    content = next((each.get(kind.removesuffix("s")) for each in found if each.get("name") == name), None)
    if not isinstance(content, dict):
        refuse_access(path, f"it has {wanted_by}, which is not in {kind}: add it, or choose another context")
    return content


def _check(cluster: Mapping[str, object], user: Mapping[str, object], path: Path) -> None:
    for kind, content in (("cluster", cluster), ("user", user)):
        for key, remedy in _UNSUPPORTED[kind].items():
            if content.get(key):
                refuse_access(path, f"{key} is not supported: {remedy}")
    server = cluster.get("server")
    if not isinstance(server, str) or not _is_url(server):
        refuse_access(path, f"server is {server!r:.200}: write the URL of the API server, such as https://host:6443")
    for key in _DATA:
        data = (cluster if key in cluster else user).get(key)
        if isinstance(data, str) and data and not _is_pem(data):
            refuse_access(path, f"{key} is not PEM in base64: compare it with `kubectl config view --raw`")
    if _has(user, "client-certificate") and not _has(user, "client-key"):
        refuse_access(path, "the user has a client-certificate but no client-key: add it")
    command = user.get("exec")
    if isinstance(command, dict) and (version := command.get("apiVersion")) not in _EXEC_VERSIONS:
        remedy = f"write {_EXEC_VERSIONS[0]}, or use a token or tokenFile"
        refuse_access(path, f"exec.apiVersion is {version!r:.100}: {remedy}")


def _with_absolute_paths(content: Mapping[str, object], path: Path) -> dict[str, object]:
    """Return an entry with paths relative to the kubeconfig made absolute; raises ConfigurationError."""
    files = {key: path.absolute().parent / each for key in _FILES if isinstance(each := content.get(key), str) and each}
    for key, file in files.items():
        try:
            file.open("rb").close()
        except OSError as error:
            refuse_access(path, f"{key}: {reason_of(error)}; correct the path")
    return {**content, **{key: str(file) for key, file in files.items()}}


def _has(user: Mapping[str, object], key: str) -> bool:
    return bool(user.get(key) or user.get(f"{key}-data"))


def _is_pem(text: str) -> bool:
    try:
        return b"-----BEGIN " in b64decode(text)
    except ValueError:
        return False


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises ValueError for an invalid port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)


def read_config(
    kubeconfig: Path | None, service_account: Path = SERVICE_ACCOUNT, *, context: str = "", setting: str = SETTING
) -> "SingleConfig":
    """Return the configuration in effect; raises ConfigurationError.

    Sources in order: `kubeconfig`, the variable KUBECONFIG, the service account of this pod, `~/.kube/config`.
    """
    try:
        import lightkube  # noqa: F401, PLC0415  an optional dependency
    except ImportError as error:
        raise ConfigurationError(
            f"the package {error.name!r} for access to Kubernetes is not installed: {install_command('kubernetes')}"
        ) from error
    path = kubeconfig
    if path is None and (named := os.environ.get("KUBECONFIG", "")):
        if os.pathsep in named:
            remedy = "name one file, such as the output of `kubectl config view --flatten`"
            raise ConfigurationError(f"KUBECONFIG names several files, {named}: {remedy}")
        path = Path(named)
    if path is None and (service_account / "token").exists():
        return _with_user(_of_service_account(service_account))
    return _with_user(read_kubeconfig(path or _default_config(service_account), context, setting))


def _with_user(config: "KubeConfig") -> "SingleConfig":
    from lightkube.config.models import User  # noqa: PLC0415  an optional dependency

    found = config.get()
    assert found is not None  # noqa: S101  all sources have a context
    return found if found.user is not None else found._replace(user=User())


def client_of(config: "SingleConfig", headers: Mapping[str, str] | None = None) -> "httpx2.AsyncClient":
    """Return a client; raises ConfigurationError for unusable certificates or credentials. Does not connect yet."""
    import httpx2  # noqa: PLC0415  an optional dependency
    from lightkube.config.client_adapter import ConnectionParams  # noqa: PLC0415  the same
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415  the same

    try:
        params = ConnectionParams().httpx_params(config)
    except (ConfigError, OSError, ValueError) as error:  # ssl.SSLError is an OSError
        refuse_access(config.fname or config.cluster.server, f"{reason_of(error)}; correct certificates and keys")
    known = {getattr(socket, name): value for name, value in _KEEPALIVE.items() if hasattr(socket, name)}
    keepalive = ((socket.IPPROTO_TCP, option, value) for option, value in known.items())
    transport = httpx2.AsyncHTTPTransport(
        verify=params["verify"],
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=10),
        proxy=_proxy(config.cluster.server) if config.fname else None,
        socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *keepalive],
    )
    return httpx2.AsyncClient(base_url=params["base_url"], auth=params["auth"], headers=headers, transport=transport)


def credential_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of a client for an unreadable token file or a failed token command."""
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415  an optional dependency

    return (ConfigError, OSError, ValueError, KeyError, TypeError)


def _default_config(service_account: Path) -> Path:
    path = Path("/") / _DEFAULT_FILE
    with suppress(RuntimeError):  # a user without a home directory
        path = Path.home() / _DEFAULT_FILE
    if not path.exists():
        raise ConfigurationError(
            f"no access to Kubernetes: there is no service account in {service_account} and no {path}: run in a pod, "
            f"or set {SETTING} to a file"
        )
    return path


def _of_service_account(directory: Path) -> "KubeConfig":
    from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415  an optional dependency
    from lightkube.core.exceptions import ConfigError  # noqa: PLC0415  the same

    if missing := [name for name in _SERVICE_VARIABLES if not os.environ.get(name)]:
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
    """Return the proxy for a server according to the environment; None for no proxy."""
    parts, proxies = urlsplit(server), getproxies()
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return proxies.get(parts.scheme) or proxies.get("all")


def reason_of(error: BaseException) -> str:
    """Return the reason for an error, on one line and without secrets."""
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            problem = each.verify_message.rstrip(".")
            return f"its certificate is not accepted: {problem}; correct the certificate authority or the address"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, ssl.SSLError):
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    kind = type(error).__name__
    if kind in _CLIENT_ERRORS:
        return _CLIENT_ERRORS[kind]
    texts = [text for each in chain if (text := " ".join(str(each).split()))]
    if kind == "ConnectError":  # its own text lacks the reason
        texts = [_os_text(each) for each in chain if isinstance(each, OSError) and each.strerror][-1:] or texts
    return texts[0][:_REASON_LENGTH] if texts else (_BROKEN if len(chain) > 1 else kind)


def refuse_access(place: object, problem: str) -> NoReturn:
    """Raise ConfigurationError for a file, directory or server; `problem` ends with a remedy."""
    raise ConfigurationError(f"no access to Kubernetes: {place}: {problem}")


def _os_text(error: OSError) -> str:
    """Return the text of an OS error; errors of name resolution have negative numbers and their own text."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; for a group, those of its first error."""
    following: BaseException | None = error
    while following is not None:
        yield following
        if isinstance(following, BaseExceptionGroup):
            following = following.exceptions[0]
        else:
            following = following.__cause__ or following.__context__
