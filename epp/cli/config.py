# SPDX-License-Identifier: Apache-2.0
"""`epp config`: ready-made configurations, to be printed and edited, and the schema of all of them."""

import typer
from rich.table import Table

from epp.cli.commands import ConfigList, ConfigSchema, ConfigShow
from epp.cli.errors import exit_on
from epp.cli.output import new_console, print_json
from epp.config.ready_made import sample_texts, summary
from epp.framework.errors import ConfigurationError
from epp.framework.messages import hint_at


def config_list(_: ConfigList) -> None:
    """Print name and summary of each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for name, text in sample_texts().items():
        table.add_row(name, summary(text))
    new_console().print(table)


def config_show(flags: ConfigShow) -> None:
    """Print one."""
    texts = sample_texts()
    with exit_on(ConfigurationError):
        text = texts.get(flags.name.removesuffix(".yaml"))
        if text is None:
            raise ConfigurationError(f"no ready-made configuration {flags.name!r}; {hint_at(flags.name, texts)}")
    typer.echo(text, nl=False)


def config_schema(_: ConfigSchema) -> None:
    """Print the schema."""
    from epp.config import schema  # noqa: PLC0415  loads all plugins, which the others do not need
    from epp.framework.registry import Registry  # noqa: PLC0415  the same

    with exit_on(ConfigurationError):
        print_json(schema.config_schema(Registry()))
