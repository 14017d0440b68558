# SPDX-License-Identifier: Apache-2.0
"""What a program needs to log in: a kubeconfig file, or the directory that a pod has of its service account."""

import shutil
import tempfile
from pathlib import Path

import yaml

from tests.support.kube.apiserver import HOST, Access


def write_kubeconfig(
    path: Path, access: Access, *, token: str = "", token_file: Path | None = None, namespace: str = "default"
) -> Path:
    """Write the file in one step; with a token, or with the name of a file that has it."""
    user = {"tokenFile": str(token_file)} if token_file else {"token": token}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": access.url, "certificate-authority": str(access.ca)}}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": namespace}}],
    }
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.write_text(yaml.safe_dump(document))
    return unfinished.replace(path)


def write_mount(directory: Path, access: Access, *, token: str, namespace: str) -> dict[str, str]:
    """Write the directory as a kubelet does, by exchanging the link `..data`; return the environment of the pod."""
    directory.mkdir(exist_ok=True)
    link = directory / "..data"
    before = link.resolve() if link.is_symlink() else None
    version = Path(tempfile.mkdtemp(prefix="..version-", dir=directory))
    (version / "token").write_text(token)
    (version / "namespace").write_text(namespace)
    shutil.copyfile(access.ca, version / "ca.crt")
    new_link = directory / "..data_tmp"
    new_link.symlink_to(version.name)
    new_link.replace(link)
    for name in ("token", "namespace", "ca.crt"):
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    if before is not None:
        shutil.rmtree(before)
    return {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(access.port)}
