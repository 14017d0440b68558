# SPDX-License-Identifier: Apache-2.0
"""Files that a picker follows: endpoints with labels and configurations, replaced in the ways operators do it."""

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


class ConfigMap:
    """A directory as Kubernetes mounts a ConfigMap: every file is a link into `..data`, which is swapped for all."""

    def __init__(self, directory: Path, **files: str) -> None:
        self._directory = directory
        self._versions = 0
        self.update(**files)
        for name in files:
            (directory / f"{name}.yaml").symlink_to(f"..data/{name}.yaml")

    def update(self, **files: str) -> None:
        data = self._directory / "..data"
        before = data.readlink() if data.is_symlink() else None
        self._versions += 1
        version = self._directory / f"..version_{self._versions}"
        version.mkdir()
        for name, text in files.items():
            (version / f"{name}.yaml").write_text(text)
        swapped_in = self._directory / "..data_tmp"
        swapped_in.symlink_to(version.name)
        swapped_in.replace(data)
        if before is not None:
            for file in (self._directory / before).iterdir():
                file.unlink()
            (self._directory / before).rmdir()


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
