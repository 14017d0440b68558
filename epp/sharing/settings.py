# SPDX-License-Identifier: Apache-2.0
"""Settings of shared state, and the flags that set them."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from epp.runtime.addresses import RedisAddress
from epp.runtime.flags import SIZE, flag

_PREFIX: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """Store for the shared state of a pool's pickers; raises ValueError for flags that contradict each other."""

    address: str = flag(
        "",
        "Redis or Valkey through which the pickers of this pool share requests in flight, prefix index entries, "
        "learned rates and the use of quotas: redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], rediss:// with TLS, "
        "unix:///PATH, or the primary that Sentinels name: redis+sentinel://HOST:PORT,HOST:PORT/SERVICE[/DATABASE], "
        "rediss+sentinel:// with TLS. No request waits for it. Without PASSWORD: EPP_REDIS_USERNAME and "
        "EPP_REDIS_PASSWORD, if they are set; Sentinels get EPP_REDIS_SENTINEL_PASSWORD.",
        "URL",
        name="--shared-state",
    )
    password_file: Path | None = flag(
        None,
        "File with the password for --shared-state; it is read at each connection.",
        "FILE",
        name="--shared-state-password-file",
    )
    ca_file: str = flag(
        "",
        "PEM file with the certificate authorities of --shared-state; by default those of the system.",
        "FILE",
        name="--shared-state-ca-file",
    )
    prefix: str = flag(
        "epp", "Beginning of the keys of --shared-state, before the name of the pool.", "TEXT",
        name="--shared-state-prefix",
    )  # fmt: skip
    history_bytes: int = flag(
        64 * _MIB,
        "Approximate memory of --shared-state for the latest changes, which pickers that start read.",
        SIZE,
        name="--shared-state-history",
    )
    quotas_when_alone: Literal["last-known-share", "refuse", "full-limit"] = flag(
        "last-known-share",
        "Part of each quota that a picker may use while --shared-state cannot be reached: its last share; nothing, so "
        "that new requests wait or are refused; or all of it.",
        name="--shared-quotas-when-alone",
    )

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f"--shared-state-prefix: {self.prefix!r}: write up to 100 letters, digits and the signs . _ : -"
            )
        if self.history_bytes < _MIB:
            raise ValueError("--shared-state-history: must be at least 1MiB")
        if not self.address and (self.password_file is not None or self.ca_file):
            raise ValueError("--shared-state-password-file and --shared-state-ca-file need --shared-state: add it")
        if not self.address and self.quotas_when_alone != "last-known-share":
            raise ValueError("--shared-quotas-when-alone needs --shared-state: add it")
        if self.address:
            self.server.connection()

    @property
    def server(self) -> RedisAddress:
        return RedisAddress(self.address, self.ca_file, password_file=self.password_file)
