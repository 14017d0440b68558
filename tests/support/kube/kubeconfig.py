# SPDX-License-Identifier: Apache-2.0
"""What a program needs to log in: a kubeconfig file, or the directory that a pod has of its service account."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.support.config_files import mount
from tests.support.kube.apiserver import HOST, Access

NO_CERTIFICATES = {"insecure-skip-tls-verify": True}
"""Of a server without TLS: to read the usual ones takes 20 ms for each client."""


def kubeconfig(path: Path, server: str, **parts: Any) -> Path:
    """Write a kubeconfig for the server in one step."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(kubeconfig_text(server, **parts))
    return unfinished.replace(path)


def kubeconfig_text(
    server: str, *, cluster: Mapping[str, object] | None = None, namespace: str = "ns", **user: object
) -> str:
    """Return a kubeconfig for the server; `user` has the fields of its user, with `_` for `-`."""
    user = {name.replace("_", "-"): value for name, value in user.items()}
    document = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "it", "user": "me", "namespace": namespace}}],
        "clusters": [{"name": "it", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "me", "user": user}],
    }
    return yaml.safe_dump(document)


def write_kubeconfig(
    path: Path, access: Access, *, token: str = "", token_file: Path | None = None, namespace: str = "default"
) -> Path:
    """Write a kubeconfig with a token, or with the name of a file that has it."""
    user = {"tokenFile": str(token_file)} if token_file else {"token": token}
    authority = {"certificate-authority": str(access.ca)}
    return kubeconfig(path, access.url, cluster=authority, namespace=namespace, **user)


def write_mount(directory: Path, access: Access, *, token: str, namespace: str) -> dict[str, str]:
    """Write the directory as a kubelet does, by exchanging the link `..data`; return the environment of the pod."""
    directory.mkdir(exist_ok=True)
    mount(directory, {"token": token, "namespace": namespace, "ca.crt": access.ca.read_bytes()})
    return {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(access.port)}
