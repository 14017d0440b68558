"""`epp config`: ready-made configurations, to be printed and edited, and the schema of all of them."""

from typing import Annotated

import typer
from rich.table import Table

from epp.cli.output import exit_on, new_console, print_json
from epp.framework.errors import ConfigurationError
from epp.framework.hints import hint_at
from epp.samples import sample_texts, summary

config = typer.Typer(
    help="Print ready-made configurations, or the schema of configurations.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@config.command("list")
def list_samples() -> None:
    """List the ready-made configurations."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for name, text in sample_texts().items():
        table.add_row(name, summary(text))
    new_console().print(table)


@config.command()
def show(name: Annotated[str, typer.Argument(help="A name of `epp config list`.")]) -> None:
    """Print a ready-made configuration. To edit it: `epp config show default > config.yaml`."""
    texts = sample_texts()
    with exit_on(ConfigurationError):
        text = texts.get(name.removesuffix(".yaml"))
        if text is None:
            raise ConfigurationError(f"no ready-made configuration {name!r}; {hint_at(name, texts)}")
    typer.echo(text, nl=False)


@config.command()
def schema() -> None:
    """Print the JSON schema of configurations. Plugins of other installed packages are in it too."""
    from epp.config.schema import config_schema  # noqa: PLC0415  loads all plugins, which the others do not need
    from epp.framework.registry import Registry  # noqa: PLC0415

    with exit_on(ConfigurationError):
        print_json(config_schema(Registry()))
