# SPDX-License-Identifier: Apache-2.0
"""Errors of commands, as one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def exit_on(*expected: type[Exception]) -> Iterator[None]:
    """Print an expected error as one line and exit with code 1."""
    try:
        yield
    except expected as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error
