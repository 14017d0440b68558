# SPDX-License-Identifier: Apache-2.0
"""Objects come from files and directories; what cannot be read costs that file alone."""

import os

import pytest

from epp.framework import ConfigurationError
from epp.kube.objects.files import ObjectFiles, parse


def read(*paths) -> dict[str, tuple[object, ...] | str]:
    """File name to documents, or to the problem."""
    reading = ObjectFiles([str(path) for path in paths]).read()
    found: dict[str, tuple[object, ...] | str] = {file.name: reason for file, reason in reading.unreadable.items()}
    for file, content in reading.contents.items():
        try:
            found[file.name] = parse(file, content.data)
        except ValueError as error:
            found[file.name] = str(error)
    return found


def test_file_may_hold_several_documents_as_yaml_or_json(tmp_path):
    (tmp_path / "a.yaml").write_text("kind: Node\n---\n---\nkind: Pod\n")
    (tmp_path / "b.json").write_text('{"kind": "List",\n "items": []}\n{"kind": "Node"}')
    assert read(tmp_path) == {
        "a.yaml": ({"kind": "Node"}, {"kind": "Pod"}),
        "b.json": ({"kind": "List", "items": []}, {"kind": "Node"}),
    }


def test_directory_is_read_whole_but_for_what_is_hidden_or_of_another_kind(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "..version").mkdir()
    for name in ("sub/a.yml", "..version/b.yaml", ".c.yaml", "notes.txt"):
        (tmp_path / name).write_text("kind: Node\n")
    assert read(tmp_path) == {"a.yml": ({"kind": "Node"},)}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: {", "line 1: neither YAML nor JSON: a value is missing, or a bracket is not closed"),
        ("[" * 1000, "line 1: nested more than 64 deep"),
        ("a: !!python/object:os.system {}", "line 1: neither YAML nor JSON: could not determine a constructor"),
        (b"\xff\xfe", "neither YAML nor JSON: 'utf-8' codec"),
    ],
)
def test_bad_file_is_named_and_the_others_are_read(tmp_path, text, problem):
    (tmp_path / "bad.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    (tmp_path / "good.yaml").write_text("kind: Node\n")
    found = read(tmp_path)
    assert found["bad.yaml"].startswith(problem)
    assert found["good.yaml"] == ({"kind": "Node"},)


def test_key_that_stands_twice_is_named_in_yaml_and_json(tmp_path):
    (tmp_path / "a.yaml").write_text("kind: Pod\nmetadata: {name: a,\n  name: b}\n")
    (tmp_path / "b.json").write_text('{"kind": "Pod", "metadata": {"name": "a", "x": 1, "name": "b"}}')
    found = read(tmp_path)
    assert "line 3: key 'name' is repeated: remove one of them" in found["a.yaml"]
    assert "key 'name' is repeated in one object: remove one of them" in found["b.json"]


def test_directory_that_cannot_be_read_is_the_reason_for_its_files(tmp_path):
    directory = tmp_path / "objects"
    directory.mkdir()
    files = ObjectFiles([str(directory)])
    directory.rmdir()
    directory.symlink_to("objects")  # to itself: as root, whom no permission stops, can be kept out too
    reading = files.read([directory / "a.yaml"])
    assert reading.reason_missing(directory / "a.yaml") == "it cannot be read: Too many levels of symbolic links"


def test_pipe_in_a_directory_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    assert read(tmp_path) == {}


def test_of_overlapping_paths_the_last_gives_a_file_its_place(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.touch()
    files = ObjectFiles([str(tmp_path), str(first)])
    assert sorted([first, second], key=files.order) == [second, first]


def test_path_where_there_is_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"paths: there is neither file nor directory .*nowhere"):
        ObjectFiles([str(tmp_path / "nowhere")])
