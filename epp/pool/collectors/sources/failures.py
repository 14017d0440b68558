# SPDX-License-Identifier: Apache-2.0
"""Classification of poll failures: cause, whether requests can still be served, and the remedy."""

import errno
import ssl
from dataclasses import dataclass

from epp.framework.datalayer import Contact, PageError, UnreachableError
from epp.framework.endpoint import Endpoint

_REFUSALS = frozenset({errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE})
_EXPIRED = 10
_OTHER_NAMES = frozenset({62, 64})  # of a host, of an IP address
"""Verification errors of OpenSSL."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Target and subject of the failed query."""

    endpoint: Endpoint
    url: str
    port: int
    source: str
    own_tls: bool
    """Whether TLS, or the lack of it, is the endpoint's own, as opposed to a parameter of the source."""
    as_gateway: bool = False
    """Whether certificates are verified as the gateway beside this picker does it."""

    @property
    def place(self) -> str:
        """The address that was asked, as people write it."""
        address = f"[{self.endpoint.address}]" if ":" in self.endpoint.address else self.endpoint.address
        return f"{self.endpoint.host or address}:{self.port}"

    def speaks_tls(self) -> UnreachableError | PageError:
        """Return the error of a TLS server that was asked in plaintext."""
        problem = f"{self.place} speaks TLS, but is asked in plaintext"
        if self.own_tls:
            remedy = f"write https://{self.place}, or scheme: https in a file of endpoints"
            return UnreachableError(problem, refused=True, contact=Contact.SPEAKS_TLS, remedy=remedy)
        return PageError(problem, remedy=f"write scheme: https in the parameters of {self.source}")

    def speaks_plaintext(self) -> UnreachableError | PageError:
        """Return the error of a plaintext server that was asked over TLS."""
        problem = f"{self.place} speaks plaintext HTTP, but is asked over TLS"
        if self.own_tls:
            remedy = f"write http://{self.place}, or scheme: http in a file of endpoints"
            return UnreachableError(problem, refused=True, contact=Contact.SPEAKS_PLAINTEXT, remedy=remedy)
        return PageError(problem, remedy=f"write scheme: http in the parameters of {self.source}")

    def not_trusted(self, error: ssl.SSLCertVerificationError) -> UnreachableError | PageError:
        """Return the error of a server whose certificate is not trusted."""
        problem = f"the certificate of {self.place} is not trusted: {error.verify_message}"
        remedy = self._trust_remedy(error.verify_code)
        if self.own_tls:
            return UnreachableError(problem, refused=True, contact=Contact.NOT_TRUSTED, remedy=remedy)
        return PageError(problem, remedy=remedy)

    def no_handshake(self, error: Exception) -> UnreachableError | PageError:
        """Return the error of a server with which TLS fails for any other reason."""
        problem = f"no secure connection to {self.place}: {error}"
        remedy = "look at the server's log, and at its TLS versions"
        return (
            UnreachableError(problem, refused=True, remedy=remedy)
            if self.own_tls
            else PageError(problem, remedy=remedy)
        )

    def timed_out(self, seconds: float) -> UnreachableError:
        """Return the error of a server that did not answer in time."""
        remedy = "check the address, firewalls and the server's log"
        return UnreachableError(f"{self.url} did not answer within {seconds} s", refused=False, remedy=remedy)

    def lost(self, error: Exception) -> UnreachableError:
        """Return the error of a server to which there is no connection."""
        number = error.errno if isinstance(error, OSError) else None
        if number == errno.ECONNREFUSED:
            problem = f"nothing listens at {self.place}: connection refused"
            return UnreachableError(problem, refused=True, remedy="start the server, or correct the address")
        if number in _REFUSALS or number is None:
            problem = f"{self.url}: the connection was closed without an answer"
            return UnreachableError(problem, refused=True, remedy="look at the server's log")
        problem = f"{self.url}: {error}"
        return UnreachableError(problem, refused=False, remedy="check the address and the network")

    def _trust_remedy(self, code: int) -> str:
        if code == _EXPIRED:
            return "renew the certificate"
        if code in _OTHER_NAMES:
            return "write the endpoint with a host name or address that its certificate has"
        if self.as_gateway:
            return "name its authority with --endpoint-ca-file FILE, or give --endpoint-insecure-skip-verify"
        return f"name its authority in caCertPath of {self.source}, or write insecureSkipVerify: true"
