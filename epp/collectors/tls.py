"""The client's side of TLS for a source that fetches over HTTPS."""

import ssl
from pathlib import Path

import structlog

from epp.framework.plugin import Parameters

_log = structlog.get_logger()


class TlsParameters(Parameters, frozen=True):
    """Whom to trust, and how to show who asks."""

    insecure_skip_verify: bool = True
    """Take any server certificate: model servers in a cluster rarely have one that can be verified."""
    ca_cert_path: str = ""
    """File with the authorities that may sign the server's certificate; the system's own when left out."""
    client_cert_path: str = ""
    """File with the certificate that the server wants to see; none when left out."""
    client_key_path: str = ""
    """File with its key."""

    def __post_init__(self) -> None:
        """Check that certificate and key come together; raises ValueError."""
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath go together: give both or neither")


def tls_context(parameters: TlsParameters, name: str) -> ssl.SSLContext:
    """Return what the parameters ask for; raises ValueError for a certificate file that cannot be used."""
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
