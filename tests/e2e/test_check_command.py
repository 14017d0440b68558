# SPDX-License-Identifier: Apache-2.0
"""`epp check` and `epp plugins` from outside: what they say, and how they end."""

import json
from pathlib import Path

from commands import outcome

CONFIG = Path(__file__).parents[2] / "config"
READY_MADE = sorted(CONFIG.glob("*.yaml"))
GOOD = CONFIG / "llm-d-default.yaml"
MISSPELLED = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cash-scorer
"""


async def test_ready_made_files_are_good_and_give_no_cause_for_warning():
    assert len(READY_MADE) > 5
    exit_code, said = await outcome("check", "--strict", *map(str, READY_MADE))
    assert exit_code == 0, said
    assert [line for line in said.out if line.endswith(".yaml: ok")] == [f"{file}: ok" for file in READY_MADE]


async def test_broken_file_is_refused_with_place_and_remedy_beside_a_good_one(tmp_path):
    broken = tmp_path / "broken.yaml"
    broken.write_text(MISSPELLED)
    exit_code, said = await outcome("check", str(GOOD), str(broken))
    assert exit_code == 1
    assert f"{GOOD}: ok" in said.out
    place = said.out.index(f"{broken}: refused, 1 error")
    error = said.out[place + 1]
    assert f"{broken}:6:3: plugins[1].type: plugin type 'prefix-cash-scorer' is not registered" in error
    assert "'prefix-cache-scorer'" in error
    assert said.err == []


async def test_programs_get_the_same_as_json(tmp_path):
    missing = tmp_path / "missing.yaml"
    exit_code, said = await outcome("check", "--output=json", str(GOOD), str(missing))
    assert exit_code == 1
    good, bad = json.loads("\n".join(said.out))
    assert (good["file"], good["errors"], good["warnings"]) == (str(GOOD), [], [])
    assert good["graph"]
    assert bad["file"] == str(missing)
    (error,) = bad["errors"]
    assert (error["file"], error["line"], error["message"]) == (
        str(missing),
        None,
        "cannot be read: No such file or directory",
    )


async def test_plugins_are_listed_and_one_of_them_in_full():
    exit_code, said = await outcome("plugins")
    assert exit_code == 0
    assert any("prefix-cache-scorer" in line for line in said.out)
    exit_code, said = await outcome("plugins", "session-affinity-filter")
    assert exit_code == 0
    assert any("encodedEndpointHeaderConfig.header" in line for line in said.out)


async def test_unknown_plugin_type_is_answered_with_the_nearest_one():
    exit_code, said = await outcome("plugins", "queue-skorer")
    assert exit_code == 1
    assert said.error.startswith("error: no plugin type 'queue-skorer'; ")
    assert "'queue-scorer'" in said.error
