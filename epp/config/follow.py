# SPDX-License-Identifier: Apache-2.0
"""Follows a configuration file: yields each valid new version, and keeps the last good one."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from epp.config.assemble import Assembly
from epp.config.load import LoadedConfig, decoded, load_text, read_again
from epp.framework import Clock, ConfigurationError, SystemClock
from epp.framework.files import FileContent, UnsettledVersion, doubt, file_id, next_wait
from epp.framework.messages import described
from epp.runtime.followed_files import RELOADS, changes

_log = structlog.get_logger()


class ConfigObserver:
    """No-op callbacks; override those of interest."""

    __slots__ = ()

    def config_taken(self, generation: int) -> None:
        """Record that a configuration is in effect."""

    def config_refused(self, reason: str) -> None:
        """Record that a new version was rejected; the previous one stays in effect."""


@dataclass(frozen=True, slots=True)
class ConfigState:
    """The generation in effect, and the problem of a rejected version."""

    generation: int = 1
    """1 at the start; each applied configuration adds 1."""
    refused: str = ""
    """Reason that the current version of the file was rejected; empty if it is in effect."""


class ConfigFollower:
    """Follows a file: iterate over `versions`, and call `accept` or `reject` for each one."""

    def __init__(
        self,
        path: Path,
        current: LoadedConfig,
        *,
        build: Callable[[LoadedConfig], Assembly],
        default: Path | None = None,
        watch: bool = True,
        generation: int = 1,
        observer: ConfigObserver | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Follow `path`; `current` is its content so far, of this generation.

        `build` runs in a thread, so that it does not delay requests. `default` is read while `path` does not exist.
        Without `watch`, only a requested reload reads the file again.
        """
        self._paths = (path,) if default is None else (path, default)
        self._path = path
        self._watch = watch
        self._effective = current.text
        self._rejected_text: str | None = None
        self._build = build
        self._clock = clock or SystemClock()
        self._file = file_id(path)
        self._waiting: UnsettledVersion | None = None
        self._whole = b""
        """Digest of the last version that was complete."""
        self._observer = observer or ConfigObserver()
        self.state = ConfigState(generation)
        self._observer.config_taken(self.state.generation)

    async def versions(self) -> AsyncIterator[Assembly]:
        """Yield each new version, until cancelled."""
        async for _ in changes() if self._watch else RELOADS.each():
            assembly = await self.check()
            if assembly is not None:
                yield assembly

    async def check(self) -> Assembly | None:
        """Return the version in the file if it is new and valid."""
        try:
            content = await asyncio.to_thread(self._read)
            text = decoded(content.data, str(self._path))
        except ConfigurationError as error:
            self._refuse(str(error))
            return None
        in_place, self._file = content.file == self._file, content.file
        if text == self._effective:
            if self.state.refused:
                self._settle(ConfigState(self.state.generation))
                _log.info("configuration file is back to the version in effect", file=str(self._path))
            return None
        if text == self._rejected_text:
            return None
        try:
            assembly = await asyncio.to_thread(lambda: self._build(load_text(text, str(self._path))))
        except ConfigurationError as error:
            self._refuse(str(error), text)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything as it is built
            self._refuse(described(error), text)
        else:
            return assembly if self._is_whole(text, in_place=in_place) else None
        return None

    def accept(self, assembly: Assembly) -> None:
        """Record that a version is in effect."""
        self._effective = assembly.loaded.text
        self._settle(ConfigState(self.state.generation + 1))
        for warning in assembly.warnings:
            _log.warning("configuration", warning=str(warning))
        _log.info("configuration applied", file=str(self._path), generation=self.state.generation)

    def reject(self, error: Exception) -> None:
        """Record that a version could not be applied; it is yielded again, because the reason may be temporary."""
        self._refuse(str(error) if isinstance(error, ConfigurationError) else described(error))

    def _read(self) -> FileContent:
        self._path = next((path for path in self._paths if path.exists()), self._paths[0])
        return read_again(self._path)

    def _is_whole(self, text: str, *, in_place: bool) -> bool:
        """Whether a valid version may take effect; a version that may be half-written is read again first."""
        if not self._watch:
            return True  # an operator requested the reload
        digest, now = hashlib.blake2b(text.encode()).digest(), self._clock.now()
        if digest == self._whole:
            return True
        if self._waiting is not None and self._waiting.digest == digest:
            return self._waiting.is_over(now)
        reason = doubt(in_place=in_place)
        self._waiting = next_wait(self._waiting, digest, now) if reason else None
        if self._waiting is None or self._waiting.is_over(now):
            self._whole = digest
            return True
        self.state = ConfigState(self.state.generation, f"{self._path}: {reason}")
        _log.info("configuration may be incomplete, will be read again", file=str(self._path), reason=reason)
        return False

    def _settle(self, state: ConfigState) -> None:
        self.state = state
        self._rejected_text = None
        self._waiting = None
        self._observer.config_taken(state.generation)

    def _refuse(self, reason: str, text: str | None = None) -> None:
        self._rejected_text = text
        self._waiting = None
        if reason == self.state.refused:
            return
        self.state = ConfigState(self.state.generation, reason)
        _log.error("configuration rejected, the previous one stays in effect", reason=reason)
        self._observer.config_refused(reason)
