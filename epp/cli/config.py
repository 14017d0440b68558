# SPDX-License-Identifier: Apache-2.0
"""`epp config`: ready-made configurations, to be printed and edited, and the schema of all of them."""

import typer
from rich.table import Table

from epp.cli.commands import ConfigList, ConfigSchema, ConfigShow
from epp.cli.input_output import new_console, print_json
from epp.cli.running import exit_on
from epp.config.load import sample_texts, summary
from epp.config.model import config_schema as json_schema
from epp.framework.errors import ConfigurationError
from epp.framework.registry import Registry
from epp.framework.suggestions import hint_at


def config_list(_: ConfigList) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for name, text in sample_texts().items():
        table.add_row(name, summary(text))
    new_console().print(table)


def config_show(flags: ConfigShow) -> None:
    texts = sample_texts()
    with exit_on(ConfigurationError):
        text = texts.get(flags.name.removesuffix(".yaml"))
        if text is None:
            raise ConfigurationError(f"no ready-made configuration {flags.name!r}; {hint_at(flags.name, texts)}")
    typer.echo(text, nl=False)


def config_schema(_: ConfigSchema) -> None:
    with exit_on(ConfigurationError):
        print_json(json_schema(Registry()))
