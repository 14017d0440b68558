# SPDX-License-Identifier: Apache-2.0
"""Remembers the accelerator class that served a session or a tenant."""

from typing import Literal

import msgspec

from epp.framework import ACCELERATOR, Candidates, PreRequest, Producer, Request, Snapshot
from epp.framework.accelerators.served_class import SERVED_CLASS, class_of
from epp.framework.plugin import Datum, Parameters
from epp.framework.request import DEFAULT_FLOW
from epp.framework.result import SchedulingResult
from epp.framework.sessions import Bindings, SessionIds, session_digest
from epp.framework.sharing import MOST_PAYLOAD_BYTES, Shareable

_MOST_NAME = 253
_DIGEST_BYTES = 16
_MOST_NEWS = MOST_PAYLOAD_BYTES // (_MOST_NAME + _DIGEST_BYTES + 8)
"""Entries of one payload, each a digest and the name of a class."""
_MOST_PENDING = 100_000


class ServedClassParameters(Parameters, frozen=True):
    """Owner of the remembered class, and limits of the memory."""

    by: Literal["session", "tenant"] = "session"
    """`session`: each session has a class of its own; `tenant`: all requests of a fairness id have one."""
    session_id_config: SessionIds = SessionIds()
    """Sources of session ids, and limits of the memory; with `by: tenant`, the limits alone count."""


class _News(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session, or a tenant, by its digest, and its class."""

    digest: bytes
    name: str

    def __post_init__(self) -> None:
        if len(self.digest) != _DIGEST_BYTES or not 0 < len(self.name) <= _MOST_NAME:
            raise ValueError("a session has a digest of 16 bytes and a class")


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_News]).decode


class ServedClassProducer(Producer[ServedClassParameters], PreRequest[ServedClassParameters], Shareable):
    """Publishes the accelerator class of the endpoint that served the request's session, or its tenant, last.

    The class is the primary AcceleratorClass of the endpoint, or the model of its accelerator, of the profile whose
    endpoint the gateway gets. Requests without a session id, or without a fairness id, have none. A session takes about
    250 bytes of memory. With `--shared-state`, pickers know each other's classes.

    A reader is `classStickinessSeconds` of `work-seconds-scorer` and `accelerator-selection-producer`.
    """

    plugin_type = "served-class-producer"
    writes = (SERVED_CLASS,)
    may_read: tuple[Datum, ...] = (ACCELERATOR,)
    is_lasting = True

    def setup(self) -> None:
        ids = self.parameters.session_id_config
        if self.parameters.by == "session":
            self.may_read = (ACCELERATOR, *ids.keys)
        self._classes: Bindings[str] = Bindings(
            ttl_seconds=ids.eviction_ttl_seconds, sweep_seconds=ids.eviction_sweep_seconds, limit=ids.max_sessions
        )
        self._news: dict[bytes, str] | None = None
        """Changes for other pickers; None if there are none."""

    def produce(self, request: Request, candidates: Candidates) -> None:
        session = self._session(request)
        name = self._classes.find(session, self.clock.now(), use=not request.dry_run) if session else None
        if name:
            request.put(SERVED_CLASS, name)

    def pre_request(self, request: Request, result: SchedulingResult) -> None:
        primary, session = result.primary, self._session(request)
        name = class_of(primary.candidates.snapshot.records(ACCELERATOR).values[primary.slot])
        if not session or not name or request.get(SERVED_CLASS) == name:
            return
        digest = session_digest(session)
        self._classes.bind_digest(digest, name, self.clock.now())
        if self._news is not None and len(self._news) < _MOST_PENDING:
            self._news[digest] = name[:_MOST_NAME]

    def dump_state(self, snapshot: Snapshot) -> object | None:
        return {"remembered": len(self._classes)}

    def _session(self, request: Request) -> str:
        if self.parameters.by == "tenant":
            return "" if request.fairness_id == DEFAULT_FLOW else request.fairness_id
        return self.parameters.session_id_config.session(request)

    @property
    def share_name(self) -> str:
        return f"classes/{self.name}"

    def join(self, salt: int) -> None:
        self._news = {} if self._news is None else self._news

    def changes(self, snapshot: Snapshot) -> bytes | None:
        if not self._news:
            return None
        taken = list(self._news.items())[:_MOST_NEWS]
        for digest, _ in taken:
            del self._news[digest]
        return _encode([_News(digest, name) for digest, name in taken])

    def apply(self, peer: str, payload: bytes, snapshot: Snapshot) -> int:
        now = self.clock.now()
        try:
            news = _decode(payload)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from error
        for each in news:
            self._classes.bind_digest(each.digest, each.name, now)
        return len(news)
