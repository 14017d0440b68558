# SPDX-License-Identifier: Apache-2.0
"""Build hook: README.md as a package index shows it, without the links and pictures that only the repository has."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"^!\[[^]]*\]\((?!https:)[^)]*\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^]]*)\]\((?!https:)[^)]*\)")


class IndexReadme(MetadataHookInterface):
    """Runs for wheels and editable installs alike."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the description of the package."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = _LINK.sub(r"\1", _PICTURE.sub("", text))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
