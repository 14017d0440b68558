# SPDX-License-Identifier: Apache-2.0
"""Files that a picker follows: endpoints with labels and configurations, replaced in the ways operators do it."""

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

Labels = Mapping[str, str]


def picker_config(text: str) -> str:
    """Return a configuration: its first two lines, and these."""
    return f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n{text.lstrip()}"


def replace(path: Path, text: str) -> None:
    """Rename a new file over the one that is there, if any."""
    fresh = path.with_suffix(".fresh")
    fresh.write_text(text)
    fresh.replace(path)


def mount(directory: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files as Kubernetes mounts them: each is a link into `..data`, which is swapped for all at once."""
    data = directory / "..data"
    before = data.resolve() if data.is_symlink() else None
    version = directory / f"..{secrets.token_hex(4)}"
    version.mkdir()
    for name, content in files.items():
        (version / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    swapped_in = directory / "..data_tmp"
    swapped_in.symlink_to(version.name)
    swapped_in.replace(data)
    for name in files:
        if not (directory / name).is_symlink():
            swapped_in.symlink_to(f"..data/{name}")
            swapped_in.replace(directory / name)
    if before is not None:
        shutil.rmtree(before)


class ConfigMap:
    """A directory as Kubernetes mounts a ConfigMap with these YAML files."""

    def __init__(self, directory: Path, **files: str) -> None:
        self._directory = directory
        self.update(**files)

    def update(self, **files: str) -> None:
        mount(self._directory, {f"{name}.yaml": text for name, text in files.items()})


def endpoints_file(path: Path, **endpoints: tuple[str, Labels] | tuple[str, Labels, str]) -> Path:
    """Write a file of endpoints: by name, `host:port`, labels and the cluster, if any."""
    entries = []
    for name, (address, labels, *cluster) in endpoints.items():
        host, _, port = address.rpartition(":")
        entry = {"name": name, "address": host, "port": int(port), "labels": dict(labels)}
        entries.append(entry | ({"cluster": cluster[0]} if cluster else {}))
    replace(path, yaml.safe_dump({"endpoints": entries}))
    return path


def with_pool(config: str, endpoints: Path) -> str:
    """Let a configuration find its endpoints in a file, and follow that."""
    content = yaml.safe_load(config)
    content["plugins"].append({"type": "file-discovery", "parameters": {"path": str(endpoints), "watchFile": True}})
    content.setdefault("dataLayer", {})["discovery"] = {"pluginRef": "file-discovery"}
    return yaml.safe_dump(content, sort_keys=False)
