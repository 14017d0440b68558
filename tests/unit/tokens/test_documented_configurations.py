# SPDX-License-Identifier: Apache-2.0
"""The configurations in the guide, and in the comments of the ready-made profile."""

import re
from pathlib import Path

import msgspec
import pytest
import tokenizers

from epp.config import Builder, assemble, load_text
from epp.config.load import sample_texts
from epp.framework import ManualClock, Producer
from epp.framework.registry import Registry
from tests.support.documents import blocks

GUIDE = Path(__file__).parents[3] / "docs" / "precise-prefix-caches.md"


def producer_of(text: str):
    assembly = assemble(load_text(text), Builder(Registry(), ManualClock()))
    return next(each for each in assembly.pipeline.of(Producer) if each.name == "token-producer")


def test_configuration_in_the_guide_asks_the_server_that_it_names():
    (text,) = [block.text for block in blocks(GUIDE) if "token-producer" in block.text]
    assert producer_of(text).parameters.service.url == "http://render:8000"


@pytest.mark.parametrize("method", ["vllm", "tokenizer"])
def test_lines_in_the_comments_of_the_profile_can_be_added_to_its_plugins(method, tmp_path):
    text = sample_texts()["precise-prefix"]
    (line,) = re.findall(rf"^#       (- .*{method}: .*)$", text, re.MULTILINE)
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.BPE()).save(str(path))
    line = line.replace("/models/my-model/tokenizer.json", str(path))
    producer = producer_of(text.replace("plugins:\n", f"plugins:\n{line}\n", 1))
    assert producer.reads_content
    assert msgspec.to_builtins(producer.parameters)[method]
