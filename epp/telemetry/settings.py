# SPDX-License-Identifier: Apache-2.0
"""Settings of the operators' ports and of decision records, and the flags that set them."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from epp.runtime.flags import COUNT, DURATION, PORT, SIZE, SWITCH, flag

_CONNECTIONS: Final = "at most an eighth of the file descriptors; one more closes the oldest of the busiest host."

metrics_port_flag = partial(
    flag,
    None,
    "Port of the metrics page on --bind-address; 0 for any free port. Without a port there is no page.",
    PORT,
    name="--metrics-port",
)
admin_port_flag = partial(
    flag,
    None,
    "Port of the admin API, which shows and changes quotas; 0 for any free port. Without a port there is no API.",
    PORT,
    name="--admin-port",
)
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """Settings of the metrics page and its clients; raises ValueError for contradictory flags."""

    host: str = "127.0.0.1"
    """An IP address; `::` for all."""
    port: int | None = metrics_port_flag()
    """None for no page."""
    token_file: Path | None = flag(
        None,
        "File with the token that clients of the metrics page must send as Authorization: Bearer; clients without it "
        "only get the readiness from /healthz. The file is read again when it changes.",
        "FILE",
        name="--metrics-token-file",
    )
    endpoint_auth: bool | None = flag(
        None,
        "Require a token that the Kubernetes API knows (TokenReview) and allows to get the path "
        "(SubjectAccessReview); other clients only get the readiness from /healthz. Default: true if the pool is in a "
        "cluster and --metrics-token-file is not given.",
        SWITCH,
        name="--metrics-endpoint-auth",
    )
    cert_dir: Path | None = flag(
        None,
        "Directory with tls.crt and tls.key for the metrics page, which is then served over HTTPS; the files are read "
        "again when they change. Requires client authentication: --metrics-endpoint-auth, --metrics-token-file "
        "or --metrics-client-ca-file.",
        "DIRECTORY",
        name="--metrics-cert-dir",
    )
    client_ca_file: Path | None = flag(
        None,
        "File with PEM certificates of the authorities of client certificates, which the metrics page then requires; "
        "read again when it changes. Requires --metrics-cert-dir.",
        "FILE",
        name="--metrics-client-ca-file",
    )
    legacy_metrics: bool = flag(
        True,
        "Also show metrics under older names of llm-d-router (inference_objective_, inference_pool_, "
        "inference_extension_, llm_d_inference_scheduler_), for dashboards that use them.",
        SWITCH,
    )
    stream_metrics: bool = flag(
        False,
        "Show metrics of ext_proc streams: their number, duration and status.",
        SWITCH,
        name="--enable-grpc-stream-metrics",
    )
    max_connections: int = flag(
        1024, f"Most connections to the metrics port, {_CONNECTIONS}", "COUNT", name="--metrics-max-connections", min=1
    )
    request_seconds: float = flag(
        10.0,
        "Time for a client of the metrics port to send the head of a request.",
        DURATION,
        name="--metrics-request-timeout",
    )

    def __post_init__(self) -> None:
        _check_timeout("--metrics-request-timeout", self.request_seconds)
        if self.token_file is not None and self.endpoint_auth:
            raise ValueError("--metrics-token-file and --metrics-endpoint-auth exclude each other: leave one out")
        if self.client_ca_file is not None and self.cert_dir is None:
            raise ValueError("--metrics-client-ca-file has no effect without --metrics-cert-dir: add it")
        for name, file in (("--metrics-token-file", self.token_file), ("--metrics-cert-dir", self.cert_dir)):
            if file is not None and self.port is None:
                raise ValueError(f"{name} has no effect without --metrics-port: add it")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """Settings of the admin port and its clients; raises ValueError for contradictory flags."""

    port: int | None = admin_port_flag()
    """None for no admin API."""
    host: str = flag(
        "127.0.0.1",
        "Address that the admin API listens on; addresses other than 127.0.0.1 and ::1 require a token.",
        "IP",
        name="--admin-host",
    )
    token_file: Path | None = flag(
        None,
        "File with the token that clients of the admin API must send as Authorization: Bearer; read again when it "
        "changes.",
        "FILE",
        name="--admin-token-file",
    )
    max_connections: int = flag(
        64, f"Most connections to the admin port, {_CONNECTIONS}", "COUNT", name="--admin-max-connections", min=1
    )
    request_seconds: float = flag(
        10.0,
        "Time for a client of the admin port to send the head of a request.",
        DURATION,
        name="--admin-request-timeout",
    )
    body_seconds: float = 5.0
    """Time for the body of a request."""

    def __post_init__(self) -> None:
        _check_timeout("--admin-request-timeout", self.request_seconds)
        if self.token_file is not None and self.port is None:
            raise ValueError("--admin-token-file has no effect without --admin-port: add it")


def _check_timeout(name: str, seconds: float) -> None:
    if seconds <= 0:
        raise ValueError(f"{name}: must be greater than 0: write a duration such as 10s")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSettings:
    """Settings of decision records: which decisions are recorded, and the destination."""

    sample_rate: float = flag(
        0,
        "Share of the requests whose decisions are recorded, 0 to 1, for `epp explain`, /api/decisions of the "
        "admin port, and --decision-file. Failed requests are always recorded, at most ten per second.",
        "SHARE",
        name="--decision-sample-rate",
        min=0,
        max=1,
    )
    asked_by_header: bool = False
    """Whether a request header can request a record; the header is removed unless a trusted gateway sent it."""
    buffer: int = flag(1000, "Number of latest decisions kept in memory.", "COUNT", name="--decision-buffer", min=0)
    buffer_bytes: int = flag(16 * _MIB, "Largest total size of these decisions.", SIZE, name="--decision-buffer-size")
    file: Path | None = flag(
        None, "File for recorded decisions, one line of JSON each.", "FILE", name="--decision-file"
    )
    file_bytes: int = flag(
        64 * _MIB,
        "Size at which --decision-file is rotated: FILE becomes FILE.1, FILE.1 becomes FILE.2, and so on.",
        SIZE,
        name="--decision-file-size",
    )
    file_count: int = flag(
        5, "Number of decision files, including the current one.", COUNT, name="--decision-file-count"
    )
    prefixes: bool = flag(
        False,
        "Add hashes of the prompt's blocks to each record, so that traces show shared prefixes; the key of the hash is "
        "only known to this process.",
        SWITCH,
        name="--decision-file-prefixes",
    )

    @property
    def records_routed(self) -> bool:
        """Whether any successful requests are recorded."""
        return self.sample_rate > 0 or self.asked_by_header
