# SPDX-License-Identifier: Apache-2.0
"""Number of images, clips and videos in requests of each API."""

import pytest

from tests.support.apis import parse

TEXT = {"type": "text", "text": "See"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
AUDIO_URL = {"type": "audio_url", "audio_url": {"url": "https://a/b.wav"}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
VIDEO = {"type": "video_url", "video_url": {"url": "https://a/b.mp4"}}
FILE = {"type": "file", "file": {"file_id": "f"}}
SOURCE = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, SOURCE]}
INPUT_IMAGE = {"type": "input_image", "image_url": "https://a/b.png"}


def media_items(suffix, body):
    return parse(suffix, body).media_items


def said(*parts):
    return [{"role": "user", "content": list(parts)}]


@pytest.mark.parametrize(
    ("suffix", "body", "expected"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "See"}]}, 0),
        ("chat/completions", {"messages": said(TEXT, FILE)}, 0),
        ("chat/completions", {"messages": said(IMAGE, TEXT, AUDIO, AUDIO_URL, VIDEO)}, 4),
        ("chat/completions", {"messages": said(IMAGE) + said(TEXT) + said(IMAGE)}, 2),
        ("chat/completions", {"messages": said(*[VIDEO] * 300)}, 300),  # beyond those sized in full
        ("embeddings", {"input": "a"}, 0),
        ("embeddings", {"messages": said(IMAGE, TEXT)}, 1),
        ("completions", {"prompt": "a", "prompt_embeds": "AAAA"}, 0),
        ("images/generations", {"prompt": "a red cat"}, 0),
        ("responses", {"input": "a"}, 0),
        ("responses", {"input": said(INPUT_IMAGE, TEXT)}, 1),
        ("responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": [INPUT_IMAGE] * 2}]}, 2),
        ("conversations", {"items": said(INPUT_IMAGE)}, 1),
        ("messages", {"messages": said(TEXT)}, 0),
        ("messages", {"messages": said(SOURCE, RESULT), "system": [SOURCE]}, 3),
        ("messages/count_tokens", {"messages": said(SOURCE)}, 0),  # its prompt is empty
        ("chat/completions/render", {"messages": said(IMAGE)}, 0),
    ],
)
def test_media_of_a_conversation_are_counted(suffix, body, expected):
    assert media_items(suffix, body) == expected


def test_media_of_vllm_are_its_placeholders():
    features = {
        "mm_hashes": {"image": ["h", None], "video": ["i"]},
        "mm_placeholders": {
            "image": [{"offset": 0, "length": 1}, {"offset": 1, "length": 1}],
            "video": [{"offset": 2, "length": 2}],
        },
    }
    assert media_items("inference/v1/generate", {"token_ids": [9, 9, 9, 9], "features": features}) == 3
    assert media_items("inference/v1/generate", {"token_ids": [9], "features": {}}) == 0
    assert media_items("inference/v1/generate", {"token_ids": [9]}) == 0


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (None, 0),
        ([], 0),
        ("https://a/b.png", 1),
        ({"format": "processor_output"}, 1),
        (["a", "b"], 2),
        (["a", None], 1),
        ([["a", "b"], ["c"], []], 3),
    ],
)
@pytest.mark.parametrize("field", ["image_data", "audio_data", "video_data"])
def test_media_of_sglang_may_stand_alone_or_in_lists(field, data, expected):
    assert media_items("/generate", {"input_ids": [1], field: data}) == expected


def test_media_of_all_kinds_add_up():
    assert media_items("/generate", {"input_ids": [1], "image_data": ["a", "b"], "video_data": "c"}) == 3
