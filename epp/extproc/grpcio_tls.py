# SPDX-License-Identifier: Apache-2.0
"""TLS credentials of a server of grpcio."""

from pathlib import Path

import grpc

from epp.extproc.tls import CertificateFiles, self_signed


def server_credentials(cert_path: Path | None, *, reload: bool = True) -> grpc.ServerCredentials:
    """Return credentials from `tls.crt` and `tls.key` in a directory, self-signed ones where there is none.

    With `reload`, every new connection gets the pair that is in the files by then; open ones stay as they are.
    Raises ConfigurationError when the files cannot be read or are no pair.
    """
    if cert_path is None:
        return grpc.ssl_server_credentials([self_signed()])
    files = CertificateFiles(cert_path)
    if not reload:
        return grpc.ssl_server_credentials([files.pair])
    return grpc.dynamic_ssl_server_credentials(
        _configuration(files.pair),
        lambda: _renewed(files),  # type: ignore[arg-type,return-value]  # None is "no change"
    )


def _renewed(files: CertificateFiles) -> grpc.ServerCertificateConfiguration | None:
    return _configuration(files.pair) if files.renew() else None


def _configuration(pair: tuple[bytes, bytes]) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([pair])
