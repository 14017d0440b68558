"""Takes over new versions of a configuration file while the picker runs; a bad one changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from epp.config.assemble import Assembly
from epp.config.load import LoadedConfig, load_text
from epp.framework import ConfigurationError
from epp.watch import occasions

_log = structlog.get_logger()


class ConfigObserver:
    """No-op hooks; override what you want to see."""

    __slots__ = ()

    def config_taken(self, generation: int) -> None:
        """Tell that a configuration is in effect."""

    def config_refused(self, reason: str) -> None:
        """Tell that a new one was refused and the one before it stays."""


@dataclass(frozen=True, slots=True)
class ConfigState:
    """Which configuration is in effect, and whether the file has another one that could not be taken."""

    generation: int = 1
    """1 for the one that the picker started with; each one taken over adds 1."""
    refused: str = ""
    """Why the file's present version was refused; empty where it is the one in effect."""


class ConfigFollower:
    """Builds in a thread, so that requests go on; what is built is taken over between two requests."""

    def __init__(
        self,
        path: Path,
        current: LoadedConfig,
        *,
        build: Callable[[LoadedConfig], Assembly],
        take: Callable[[Assembly], Awaitable[None]],
        observer: ConfigObserver | None = None,
    ) -> None:
        self._path = path
        self._effective = "" if current.document is None else current.document.text
        self._refused_text: str | None = None
        self._build = build
        self._take = take
        self._observer = observer or ConfigObserver()
        self.state = ConfigState()
        self._observer.config_taken(self.state.generation)

    async def follow(self) -> None:
        """Look at the file whenever that is worth it, until cancelled."""
        async for _ in occasions(self._path):
            await self.look()

    async def look(self) -> None:
        """Take the file over if it is another one than before."""
        try:
            text = await asyncio.to_thread(self._path.read_text, encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            self._refuse(f"configuration file {self._path} cannot be read: {error}")
            return
        if text == self._effective:
            self._back_again()
        elif text != self._refused_text:
            await self._try(text)

    async def _try(self, text: str) -> None:
        hopeless: str | None = text
        try:
            assembly = await asyncio.to_thread(self._read_and_build, text)
            hopeless = None  # what keeps it from being taken over may pass: an endpoints file that is not there yet
            await self._take(assembly)
        except ConfigurationError as error:
            self._refuse(str(error), hopeless)
        except Exception as error:  # noqa: BLE001  whatever a plugin raises as it is built
            self._refuse(f"{type(error).__name__}: {error}", hopeless)
        else:
            self._effective = text
            self._settle(ConfigState(self.state.generation + 1))
            for warning in assembly.warnings:
                _log.warning("configuration", warning=str(warning))
            _log.info("configuration taken over", file=str(self._path), generation=self.state.generation)

    def _read_and_build(self, text: str) -> Assembly:
        return self._build(load_text(text, str(self._path)))

    def _back_again(self) -> None:
        if self.state.refused:
            self._settle(ConfigState(self.state.generation))
            _log.info("configuration file is the one in effect again", file=str(self._path))

    def _settle(self, state: ConfigState) -> None:
        self.state = state
        self._refused_text = None
        self._observer.config_taken(state.generation)

    def _refuse(self, reason: str, text: str | None = None) -> None:
        self._refused_text = text
        if reason == self.state.refused:
            return
        self.state = ConfigState(self.state.generation, reason)
        _log.error("configuration refused, the one before it stays in effect", reason=reason)
        self._observer.config_refused(reason)
