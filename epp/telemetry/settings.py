# SPDX-License-Identifier: Apache-2.0
"""Settings of the ports for operators and of decision records, and the flags that set them."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from epp.runtime.flags import COUNT, DURATION, PORT, SIZE, SWITCH, flag

_CONNECTIONS: Final = (
    "an eighth of the limit of file descriptors at most; one more closes the oldest of the host with most."
)

metrics_port_flag = partial(
    flag,
    None,
    "Port of the metrics page on --bind-address; 0 for any free one, no page without a port.",
    PORT,
    name="--metrics-port",
)
admin_port_flag = partial(
    flag,
    None,
    "Port of the admin API, which shows and changes quotas; 0 for any free one, no admin API without a port.",
    PORT,
    name="--admin-port",
)
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """The metrics page and its clients; raises ValueError for flags that contradict."""

    host: str = "127.0.0.1"
    """An IP address; `::` for all."""
    port: int | None = metrics_port_flag()
    """None for no page."""
    token_file: Path | None = flag(
        None,
        "File with the token that clients of the metrics page have to send, as Authorization: Bearer; "
        "without it, /healthz only tells whether the picker is ready. It is read again when it changes.",
        "FILE",
        name="--metrics-token-file",
    )
    endpoint_auth: bool | None = flag(
        None,
        "Answer only clients of the metrics page whose token the Kubernetes API knows (TokenReview) and allows to "
        "get its path (SubjectAccessReview); /healthz tells others whether the picker is ready. By default where "
        "the pool is in a cluster and --metrics-token-file is not given.",
        SWITCH,
        name="--metrics-endpoint-auth",
    )
    cert_dir: Path | None = flag(
        None,
        "Directory with tls.crt and tls.key for the metrics page, which is then served over HTTPS; read again "
        "when they change. Requires authentication of clients: --metrics-endpoint-auth, --metrics-token-file or "
        "--metrics-client-ca-file.",
        "DIRECTORY",
        name="--metrics-cert-dir",
    )
    client_ca_file: Path | None = flag(
        None,
        "Certificates of the authorities (PEM) that sign the client certificates required for the metrics "
        "page; read again when it changes. Requires --metrics-cert-dir.",
        "FILE",
        name="--metrics-client-ca-file",
    )
    legacy_metrics: bool = flag(
        True,
        "Show metrics under older names of llm-d-router too (inference_objective_, inference_pool_, "
        "inference_extension_, llm_d_inference_scheduler_), for dashboards that use them.",
        SWITCH,
    )
    stream_metrics: bool = flag(
        False,
        "Count ext_proc streams, how long they are open, and how they end.",
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
    """The admin port and its clients; raises ValueError for flags that contradict."""

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
        "File with the token that clients of the admin API have to send, as Authorization: Bearer; it is read "
        "again when it changes.",
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
    """Decisions to record, and the destination; failed requests are always recorded, up to a number per second."""

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
    """Whether a header of a request can ask for a record; it is removed unless a trusted gateway sent it."""
    buffer: int = flag(1000, "Number of latest decisions kept in memory.", "COUNT", name="--decision-buffer", min=0)
    buffer_bytes: int = flag(16 * _MIB, "Largest total size of these decisions.", SIZE, name="--decision-buffer-size")
    file: Path | None = flag(
        None, "Write each decision that is recorded into this file, as a line of JSON.", "FILE", name="--decision-file"
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
        "Add hashes of the blocks of each prompt to the records, with a key that only this process knows, so that a "
        "trace has the shared prefixes.",
        SWITCH,
        name="--decision-file-prefixes",
    )

    @property
    def records_routed(self) -> bool:
        """Whether requests are recorded that do not fail."""
        return self.sample_rate > 0 or self.asked_by_header
