# SPDX-License-Identifier: Apache-2.0
"""TLS of sources that fetch over HTTPS."""

import ssl
from functools import cached_property
from pathlib import Path

import structlog

from epp.framework.endpoint import EndpointTrust
from epp.framework.errors import ConfigurationError
from epp.framework.plugin import Parameters

_log = structlog.get_logger()


class TlsParameters(Parameters, frozen=True):
    """Certificates of server and client."""

    insecure_skip_verify: bool = True
    """Accept any server certificate: model servers in a cluster rarely have one that can be verified."""
    ca_cert_path: str = ""
    """File with the certificate authorities of the server; by default those of the system."""
    client_cert_path: str = ""
    """File with the client certificate; none by default."""
    client_key_path: str = ""
    """File with the key of the client certificate."""

    def __post_init__(self) -> None:
        """Check that certificate and key are set together; raises ValueError."""
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath belong together: write both or neither")


class EndpointTls:
    """TLS with HTTPS endpoints as the gateway beside this picker has it; raises ConfigurationError for a bad file."""

    def __init__(self, trust: EndpointTrust) -> None:
        self._trust = trust
        if trust.ca_file is not None:
            _ = self.context

    @cached_property
    def context(self) -> ssl.SSLContext:
        """The context, made on first use: to read the system's authorities takes a while."""
        file = self._trust.ca_file
        try:
            context = ssl.create_default_context(cafile=file)
        except OSError as error:  # ssl.SSLError is one
            why = f"it is no PEM file of certificates ({error})" if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigurationError(f"--endpoint-ca-file {file}: {why}") from error
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # Envoy is not strict either
        if not self._trust.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def tls_context(parameters: TlsParameters, name: str) -> ssl.SSLContext:
    """Return the context; raises ValueError for an invalid certificate file."""
    for key, path in (
        ("caCertPath", parameters.ca_cert_path),
        ("clientCertPath", parameters.client_cert_path),
        ("clientKeyPath", parameters.client_key_path),
    ):
        if path and not Path(path).is_file():
            raise ValueError(f"{key}: there is no file {path!r}")
    try:
        context = ssl.create_default_context(cafile=parameters.ca_cert_path or None)
        if parameters.client_cert_path:
            context.load_cert_chain(parameters.client_cert_path, parameters.client_key_path)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(filter(None, (parameters.ca_cert_path, parameters.client_cert_path)))
        raise ValueError(f"certificate files ({files}) cannot be used: {error}") from error
    if parameters.insecure_skip_verify:
        if parameters.ca_cert_path:
            _log.warning("caCertPath has no effect unless insecureSkipVerify is false", plugin=name)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
