# SPDX-License-Identifier: Apache-2.0
"""A kubeconfig file: its current context, and its mistakes."""

from base64 import b64decode
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import yaml

from epp.kube.errors import reason_of, refuse_access
from epp.runtime.plain_yaml import PlainLoader, refuse_unsafe

if TYPE_CHECKING:
    from lightkube.config.kubeconfig import KubeConfig

_DEEPEST = 50
_UNSUPPORTED = {
    "cluster": {
        "proxy-url": "set the environment variable HTTPS_PROXY instead",
        "tls-server-name": "write a server whose name is in its certificate",
    },
    "user": {"auth-provider": "kubectl has replaced it by exec"},
}
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_DATA = ("certificate-authority-data", "client-certificate-data", "client-key-data")
_EXEC_VERSIONS = ("client.authentication.k8s.io/v1beta1", "client.authentication.k8s.io/v1alpha1")


def read_kubeconfig(path: Path) -> "KubeConfig":
    """Return what the file has for its current context, and nothing else of it; raises ConfigurationError."""
    from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415  an optional dependency

    path = path.expanduser()
    document = _document(path)
    name = document.get("current-context")
    if not isinstance(name, str) or not name:
        refuse_access(path, "it has no current-context: `kubectl config use-context` sets it")
    context = _named(document, "contexts", name, f"current-context {name!r}", path)
    cluster_name, user_name = context.get("cluster"), context.get("user")
    cluster = _named(document, "clusters", cluster_name, f"context {name!r} with cluster {cluster_name!r}", path)
    user = _named(document, "users", user_name, f"context {name!r} with user {user_name!r}", path) if user_name else {}
    _check(cluster, user, path)
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


def _document(path: Path) -> Mapping[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
        refuse_unsafe(text, _DEEPEST)
        document = yaml.load(text, Loader=PlainLoader)  # noqa: S506  a safe loader
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or reason_of(error)
        refuse_access(path, f"{reason}; set --kubeconfig or KUBECONFIG to a kubeconfig file, or run in a pod")
    except (yaml.YAMLError, ValueError) as error:
        refuse_access(path, f"is not YAML: {reason_of(error)}; correct it")
    if not isinstance(document, dict):
        refuse_access(path, "is not a kubeconfig: `kubectl config view --flatten --minify` writes one")
    return document


def _named(document: Mapping[str, object], kind: str, name: object, wanted_by: str, path: Path) -> dict[str, object]:
    """Return the content of an entry; raises ConfigurationError."""
    entries = document.get(kind)
    found = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
    content = next((each.get(kind.removesuffix("s")) for each in found if each.get("name") == name), None)
    if not isinstance(content, dict):
        refuse_access(path, f"it has {wanted_by}, of which {kind} has nothing: add it, or choose another context")
    return content


def _check(cluster: Mapping[str, object], user: Mapping[str, object], path: Path) -> None:
    """Raise ConfigurationError for what cannot be used."""
    for kind, content in (("cluster", cluster), ("user", user)):
        for key, remedy in _UNSUPPORTED[kind].items():
            if content.get(key):
                refuse_access(path, f"{key} is not supported: {remedy}")
    server = cluster.get("server")
    if not isinstance(server, str) or not _is_url(server):
        refuse_access(
            path, f"server is {server!r:.200}: write the URL of the API server, such as https://10.0.0.1:6443"
        )
    for key in _DATA:
        data = (cluster if key in cluster else user).get(key)
        if isinstance(data, str) and data and not _is_pem(data):
            refuse_access(path, f"{key} is not PEM in base64: `kubectl config view --raw` shows it as kubectl has it")
    if _has(user, "client-certificate") and not _has(user, "client-key"):
        refuse_access(path, "the user has a client-certificate and no client-key: add it")
    command = user.get("exec")
    if isinstance(command, dict) and command.get("apiVersion") not in _EXEC_VERSIONS:
        version = command.get("apiVersion")
        refuse_access(
            path, f"exec.apiVersion is {version!r:.100}: write {_EXEC_VERSIONS[0]}, or use a token or tokenFile"
        )


def _with_absolute_paths(content: Mapping[str, object], path: Path) -> dict[str, object]:
    """Return the content of an entry with paths that need no directory; raises ConfigurationError for unreadable files.

    Paths are relative to the directory of the kubeconfig.
    """
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
        _ = parts.port  # raises for one that is no number
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname)
