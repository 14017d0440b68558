# SPDX-License-Identifier: Apache-2.0
"""The compared pickers: this program with each of its transports, and those of `--peer`."""

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perf.rig.processes import BenchError, Child, children, cpu_seconds, memory_mib
from tests.support.ports import reserved_ports

FLAGS = (
    "--config-file={config_file} --grpc-port={grpc_port} --grpc-health-port={health_port} "
    "--metrics-port={metrics_port} --secure-serving=false --health-checking=true --pool-name=bench -v={verbosity}"
)
"""Flags of every picker, in the syntax of llm-d-router."""
FIELDS = ("config_file", "endpoints_file", "endpoints", "grpc_port", "health_port", "metrics_port", "verbosity")
"""Fields in braces of a command. `config_file` contains `endpoints_file`; `endpoints` are the same as a list."""
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
- type: file-discovery
  parameters: {{path: {endpoints_file}}}
dataLayer: {{discovery: {{pluginRef: file-discovery}}}}
schedulingProfiles:
- name: default
  plugins:
  - {{pluginRef: queue-scorer, weight: 2}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: 2}}
  - {{pluginRef: prefix-cache-scorer, weight: 3}}
  - {{pluginRef: max-score-picker}}
"""
_MODULE = ("-P", "-m", "epp")
"""Command of the installed program, not of the current directory."""
_NAMED = re.compile(r"([A-Za-z][\w.-]*)=(.+)", re.DOTALL)


@dataclass(frozen=True)
class PickerKind:
    """A picker by name, and the command that starts it, with fields in braces."""

    name: str
    command: str
    ours: bool = True

    @property
    def shown(self) -> str:
        """The command, without paths of this machine if it is this program."""
        return "epp" + self.command.partition(" epp")[2] if self.ours else self.command

    @property
    def python(self) -> str | None:
        """The interpreter that has this program installed; None for another program."""
        if self.ours:
            return sys.executable
        beside = Path(shlex.split(self.command)[0])
        return str(beside.with_name("python")) if beside.name == "epp" and beside.with_name("python").exists() else None

    def arguments(self, **fields: object) -> list[str]:
        """Return the command line; raises BenchError for an unknown field."""
        try:
            words = [word.format(**fields) for word in shlex.split(self.command)]
        except (KeyError, IndexError, ValueError) as error:
            raise BenchError(f"--peer {self.command!r}: {error} is not one of {', '.join(FIELDS)}") from None
        program = shutil.which(words[0])
        if program is None:
            raise BenchError(f"--peer {self.command!r}: there is no program {words[0]!r}")
        return [program, *words[1:]]


def transports() -> tuple[str, ...]:
    """Return the transports of `epp serve`, default first; empty if there is no choice."""
    shown = subprocess.run([sys.executable, *_MODULE, "serve", "--help"], capture_output=True, text=True, check=True)
    text = " ".join(shown.stdout.split())
    found = re.search(r"--transport [<\[]([\w|]+)[>\]](.*?)(?: --|$)", text)
    if found is None:
        return ()
    names = found[1].split("|")
    default = re.search(r"\[default: (\w+)", found[2])
    return tuple(sorted(names, key=lambda name: default is None or name != default[1]))


def own(transport: str = "", *, name: str = "", more: str = "") -> PickerKind:
    """Return this program with a transport, or the only one without a name. `more` are further flags."""
    flag = f" --transport={transport}{more}" if transport else more
    flag += " --inherited-requests-ttl=0"  # idle servers report requests, and would count as busy
    return PickerKind(name or transport or "grpcio", f"{shlex.join([sys.executable, *_MODULE])} serve {FLAGS}{flag}")


def peers(given: list[str]) -> Iterator[PickerKind]:
    """Yield the pickers of `--peer`, each `COMMAND` or `NAME=COMMAND`."""
    for number, text in enumerate(given, start=1):
        named = _NAMED.fullmatch(text)
        name, command = (named[1], named[2]) if named else (f"peer{number if number > 1 else ''}", text)
        if not any(f"{{{field}}}" in command for field in FIELDS):
            command = f"{command} {FLAGS}"
        yield PickerKind(name, command, ours=False)


def address(number: int) -> str:
    """Return a loopback address."""
    return f"127.1.{number // 250}.{number % 250 + 1}"


class Picker:
    """A running picker."""

    def __init__(self, kind: PickerKind, child: Child, grpc_port: int, held: contextlib.ExitStack) -> None:
        self.kind = kind
        self.child = child
        self.grpc_port = grpc_port
        self._held = held

    @classmethod
    async def start(
        cls, kind: PickerKind, *, servers: int, server_port: int, refusing: int = 0, verbosity: int = 0
    ) -> "Picker":
        """Run a picker with a number of model servers, and others that refuse connections."""
        held = contextlib.ExitStack()
        directory = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="epp-bench-")))
        endpoints_file, config_file = directory / "endpoints.yaml", directory / "config.yaml"
        pool = [(address(number), server_port if number < servers else 1) for number in range(servers + refusing)]
        endpoints_file.write_text(
            "endpoints:\n"
            + "".join(f'- {{name: s{n}, address: {host}, port: "{port}"}}\n' for n, (host, port) in enumerate(pool))
        )
        config_file.write_text(CONFIG.format(endpoints_file=endpoints_file))
        grpc_port, health_port, metrics_port = held.enter_context(reserved_ports(3))
        command = kind.arguments(
            config_file=config_file,
            endpoints_file=endpoints_file,
            endpoints=",".join(f"{host}:{port}" for host, port in pool),
            grpc_port=grpc_port,
            health_port=health_port,
            metrics_port=metrics_port,
            verbosity=verbosity,
        )
        return cls(kind, await Child.start(kind.name, *command), grpc_port, held)

    @property
    def cpu_seconds(self) -> float:
        """Resources used so far, including those of its workers."""
        self.child.check()
        return sum(map(cpu_seconds, (self.child.pid, *children(self.child.pid))))

    @property
    def memory_mib(self) -> float:
        self.child.check()
        return sum(map(memory_mib, (self.child.pid, *children(self.child.pid))))

    async def stop(self) -> None:
        await self.child.stop()
        self._held.close()
