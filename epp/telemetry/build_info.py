# SPDX-License-Identifier: Apache-2.0
"""Which build this is, and what carries its streams, as metrics."""

import json
import os
from importlib import metadata

from epp.framework.plugin_status import Legacy
from epp.telemetry.families import Families

_PACKAGE = "inference-epp"
_LABELS = ("commit", "build_ref")
_COMMIT = "EPP_COMMIT"
"""Environment variable with the commit that an image was built from."""


def show_build(families: Families, transport: str) -> None:
    """Add the metric, and that of what carries ext_proc."""
    info = families.gauges(
        "info",
        "1, with the commit and the version of this program; an installation that does not tell has no commit.",
        _LABELS,
        Legacy("inference_extension_info", _LABELS),
    )
    info.labels(*build()).set(1)
    carrier = families.gauges("extproc_transport", "1 for the --transport that carries ext_proc.", ("transport",))
    carrier.labels(transport).set(1)


def build() -> tuple[str, str]:
    """Return the commit, empty for unknown, and the version."""
    try:
        installed = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError:
        return os.environ.get(_COMMIT, ""), ""
    origin = installed.read_text("direct_url.json")  # of an installation from a repository, it has the commit
    source = json.loads(origin).get("vcs_info", {}) if origin else {}
    return os.environ.get(_COMMIT) or source.get("commit_id", ""), f"v{installed.version}"
