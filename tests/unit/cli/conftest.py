# SPDX-License-Identifier: Apache-2.0
import pytest
from typer.testing import CliRunner

from epp.cli.app import application


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Run the command over files of these texts, by name; give the exit code and what was printed."""
    monkeypatch.chdir(tmp_path)

    def check(*options, stdin=None, **texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.yaml").write_text(text)
        files = [f"{name}.yaml" for name in texts]
        result = CliRunner().invoke(application(), ["check", *files, *options], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout

    return check
