# SPDX-License-Identifier: Apache-2.0
"""`epp explain`: the record of a decision, from a running picker or from a file."""

from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import BinaryIO, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from epp.cli.commands import Explain
from epp.cli.decision_tree import show
from epp.cli.input_output import new_console, print_json
from epp.cli.options import Output
from epp.cli.running import exit_on
from epp.explain.record import VERSION, DecisionRecord
from epp.framework import ConfigurationError
from epp.framework.files import read_regular
from epp.framework.messages import printable, quoted

_MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of a response, and of a line of a file."""
_KINDS: Mapping[str, Callable[..., HTTPConnection]] = {"http": HTTPConnection, "https": HTTPSConnection}
_PATH = "/api/decisions"
_HELP = (
    "decisions are kept for requests that fail, and for others with --decision-sample-rate or the header "
    "x-gateway-decision-record of a trusted gateway"
)
_REMEDY = "use the version of the picker, or --output json"


class Wanted(NamedTuple):
    """The record to find: by its id, by the id of its request, or the latest."""

    id: str = ""
    request_id: str = ""

    def __str__(self) -> str:
        if self.id:
            return f"decision or request {quoted(self.id)}"
        return f"decision of request {quoted(self.request_id)}" if self.request_id else "decision"


def from_picker(wanted: Wanted, address: str, token: str | None = None) -> bytes:
    """Request the record from a picker, as JSON; raises ConfigurationError."""
    if wanted.id:
        status, body = _get(address, f"{_PATH}/{quote(wanted.id, safe='')}", token)
        if status != HTTPStatus.NOT_FOUND:
            return _checked(address, status, body)
    request_id = wanted.request_id or wanted.id
    query = f"?limit=1&request={quote(request_id, safe='')}" if request_id else "?limit=1"
    status, body = _get(address, f"{_PATH}{query}", token)
    try:
        decisions = msgspec.json.decode(_checked(address, status, body), type=dict[str, msgspec.Raw])["decisions"]
        records = msgspec.json.decode(decisions, type=list[msgspec.Raw])
    except (msgspec.DecodeError, KeyError) as error:
        raise ConfigurationError(f"{address} did not answer like a picker: {error}") from error
    if not records:
        gone = "later decisions replaced it, or the id is wrong; " if wanted.id else ""
        raise ConfigurationError(f"{address} has no {wanted}: {gone}{_HELP}")
    return bytes(records[0])


def from_file(wanted: Wanted, path: Path) -> bytes:
    """Return the last matching record of a file, as JSON; raises ConfigurationError.

    Lines that are not records are skipped.
    """
    found: bytes | None = None
    try:
        with path.open("rb") as file:
            for line in lines_of(file, f"--file: {path}"):
                if _fits(wanted, line):
                    found = line
    except OSError as error:
        raise ConfigurationError(f"--file: {path} cannot be read: {error.strerror}") from error
    if found is None:
        raise ConfigurationError(f"{path} has no {wanted}: it has only decisions of completed requests; {_HELP}")
    return found.rstrip(b"\n")


def lines_of(file: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the lines of a file of records; raises ConfigurationError for a line that is too long."""
    while line := file.readline(_MOST_BYTES):
        if len(line) == _MOST_BYTES and not line.endswith(b"\n"):
            problem = f"{name} has a line of more than {_MOST_BYTES >> 20} MiB: no decision is that long"
            raise ConfigurationError(problem, remedy="name a file that --decision-file wrote")
        yield line


def read_record(data: bytes) -> DecisionRecord:
    try:
        record = msgspec.json.decode(data, type=DecisionRecord)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"this version cannot read the record: {error}", remedy=_REMEDY) from error
    if record.version > VERSION:
        problem = f"the record has version {record.version}, but this program reads versions up to {VERSION}"
        raise ConfigurationError(problem, remedy=_REMEDY)
    return record


class _Names(msgspec.Struct, rename="camel"):
    id: str
    request_id: str = ""


def _fits(wanted: Wanted, line: bytes) -> bool:
    try:
        names = msgspec.json.decode(line.decode(), type=_Names)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    if wanted.id:
        return wanted.id in {names.id, names.request_id}
    return not wanted.request_id or names.request_id == printable(wanted.request_id, 128)


def _get(address: str, path: str, token: str | None) -> tuple[int, bytes]:
    connection, prefix = _connection(address)
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        connection.request("GET", f"{prefix}{path}", headers=headers)
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
    except (OSError, HTTPException, ValueError) as error:
        problem = f"--admin: no picker responds at {address}: {str(error) or type(error).__name__}"
        remedy = "start one with --admin-port=9091, name another with --admin, or give --file"
        raise ConfigurationError(problem, remedy=remedy) from error
    finally:
        connection.close()
    return answer.status, body


def _connection(address: str) -> tuple[HTTPConnection, str]:
    """Return a connection to an address, and the prefix of its paths; raises ConfigurationError."""
    try:
        parts = urlsplit(address if "//" in address else f"http://{address}")
        connect = _KINDS[parts.scheme]
        connection = connect(parts.hostname or "", parts.port, timeout=10.0)
    except (KeyError, ValueError) as error:
        problem = f"--admin: {quoted(address)} is not the address of an admin port"
        raise ConfigurationError(problem, remedy="write one such as http://127.0.0.1:9091") from error
    return connection, parts.path.rstrip("/")


def _checked(address: str, status: int, body: bytes) -> bytes:
    if status == HTTPStatus.UNAUTHORIZED:
        raise ConfigurationError(f"{address} requires a token: give its file with --token-file")
    if status == HTTPStatus.NOT_FOUND:
        raise ConfigurationError(f"{address} has no decisions: name the admin port of a picker of this version")
    if status != HTTPStatus.OK:
        raise ConfigurationError(f"{address} returned {status}: {printable(body.decode('utf-8', 'replace'), 300)}")
    return body


def explain(flags: Explain) -> None:
    with exit_on(ConfigurationError):
        given = {"ID": flags.id, "--request": flags.request, "--last": flags.last}
        if len(named := [name for name, value in given.items() if value]) > 1:
            raise ConfigurationError(f"{' and '.join(named)} name different decisions: give one of them")
        wanted = Wanted(flags.id or "", flags.request or "")
        if flags.file is not None:
            data = from_file(wanted, flags.file)
        else:
            data = from_picker(wanted, flags.admin, _token(flags.token_file))
        if flags.output is Output.JSON:
            print_json(msgspec.Raw(data))
        else:
            show(new_console(), read_record(data))


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return read_regular(path, 4096).data.decode("ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a line of ASCII text"
        raise ConfigurationError(f"--token-file: {path} cannot be read: {reason}") from error
