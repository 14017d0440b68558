# SPDX-License-Identifier: Apache-2.0
"""The command that installs optional packages never names a project that anybody could have registered."""

import json
from importlib import metadata

import pytest

from epp.framework.messages import install_command


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Make an installation of a project `mine`, from an origin."""

    def install(origin):
        folder = tmp_path / "mine-1.0.dist-info"
        folder.mkdir()
        lines = ["Name: mine", "Version: 1.0", "Requires-Dist: base", "Requires-Dist: fast>=2; extra == 'speed'"]
        lines += ['Requires-Dist: faster[x]<3; extra == "speed"', "Requires-Dist: other; extra == 'else'"]
        (folder / "METADATA").write_text("\n".join(lines) + "\n")
        if origin is not None:
            (folder / "direct_url.json").write_text(json.dumps(origin))
        monkeypatch.syspath_prepend(str(tmp_path))
        assert metadata.version("mine") == "1.0"

    return install


def test_checkout_is_named(installed, tmp_path):
    installed({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_command("speed", "mine") == f"pip install -e '{tmp_path}[speed]'"


def test_wheel_is_named(installed, tmp_path):
    wheel = tmp_path / "mine-1.0-py3-none-any.whl"
    wheel.touch()
    installed({"url": wheel.as_uri(), "archive_info": {}})
    assert install_command("speed", "mine") == f"pip install '{wheel}[speed]'"


@pytest.mark.parametrize("origin", [None, {"url": "file:///nowhere/mine"}, {"url": "https://x.example/mine.whl"}, {}])
def test_packages_are_named_where_the_origin_is_not_at_hand(installed, origin):
    installed(origin)
    assert install_command("speed", "mine") == "pip install 'fast>=2' 'faster[x]<3'"


def test_program_that_is_not_installed_says_which_extra():
    assert install_command("speed", "no-such-project") == "install the extra 'speed' of this program"
