# SPDX-License-Identifier: Apache-2.0
"""`epp explain`: why a request went where it went, from the record of its decision."""

from pathlib import Path

import msgspec

from epp.cli.commands import Explain
from epp.cli.decision_source import Wanted, from_file, from_picker, read_record
from epp.cli.decision_tree import show
from epp.cli.errors import exit_on
from epp.cli.options import Output
from epp.cli.output import new_console, print_json
from epp.framework import ConfigurationError
from epp.framework.files import read_regular

_MOST_TOKEN = 4096


def explain(flags: Explain) -> None:
    """Print the decision in the format asked for."""
    with exit_on(ConfigurationError):
        wanted = _wanted(flags)
        if flags.file is not None:
            data = from_file(wanted, flags.file)
        else:
            data = from_picker(wanted, flags.admin, _token(flags.token_file))
        if flags.output is Output.JSON:
            print_json(msgspec.Raw(data))
        else:
            show(new_console(), read_record(data))


def _wanted(flags: Explain) -> Wanted:
    named = [name for name, given in (("ID", flags.id), ("--request", flags.request), ("--last", flags.last)) if given]
    if len(named) > 1:
        raise ConfigurationError(f"{' and '.join(named)} name different decisions: give one of them")
    return Wanted(flags.id or "", flags.request or "")


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return read_regular(path, _MOST_TOKEN).data.decode("ascii").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no line of letters, digits and signs"
        raise ConfigurationError(f"--token-file: {path} cannot be read: {reason}") from error
