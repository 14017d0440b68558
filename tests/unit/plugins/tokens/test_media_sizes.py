# SPDX-License-Identifier: Apache-2.0
"""Tokens of images and videos by the rules of a configuration, and their placeholders in the prompt."""

from base64 import b64encode

import pytest

from epp.framework import Headers, ManualClock, Request
from epp.framework.registry import Registry
from epp.framework.request import PREFIX_MATCH, PROMPT_TOKENS
from epp.framework.testing import candidates
from epp.plugins.prefix_cache.producer import ApproxPrefixCacheProducer
from tests.support.apis import parse

POOL = candidates(waiting=[0])
IMAGE = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
VIDEO = {"type": "video_url", "video_url": {"url": "https://a/b.mp4"}}
AUDIO = {"type": "audio_url", "audio_url": {"url": "https://a/b.wav"}}
PNG_2048 = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x08\0\0\0\x08\0" + bytes(30)
LARGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64encode(PNG_2048).decode()}}


def request_of(*parts, headers=()):
    body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
    return Request("r", parse("chat/completions", body), Headers(headers))


def counted(request, estimate=None):
    parameters = {} if estimate is None else {"estimate": estimate}
    producer = Registry().build("token-producer", parameters, name="token-producer", clock=ManualClock())
    producer.produce(request, POOL)
    return request.get(PROMPT_TOKENS)


def tokens(part, estimate=None, **headers):
    """Tokens of one item: `user` and two newlines are two tokens more."""
    fields = [("x-llm-d-video-" + name.replace("_", "-"), value) for name, value in headers.items()]
    return counted(request_of(part, headers=fields), estimate).count - 2


@pytest.mark.parametrize(
    ("part", "image", "expected"),
    [
        (IMAGE, None, 225),  # 640 * 360 / 1024
        (IMAGE, {"mode": "static", "static": {"staticToken": 280}}, 280),
        (IMAGE, {"mode": "static"}, 1),
        (IMAGE, {"defaultResolution": {"width": 1024, "height": 1024}}, 1024),
        (IMAGE, {"dynamic": {"factor": 784}}, 293),  # 230400 / 784
        (LARGE, None, 4096),  # 2048 * 2048 / 1024
        (LARGE, {"dynamic": {"factor": 4096}, "defaultResolution": {"width": 1, "height": 1}}, 1024),
        (VIDEO, {"mode": "static", "static": {"staticToken": 280}}, 2250),
        (AUDIO, {"mode": "static", "static": {"staticToken": 280}}, 250),
    ],
)
def test_images_are_sized_by_pixels_or_all_alike(part, image, expected):
    assert tokens(part, None if image is None else {"image": image}) == expected


GEMMA = {
    "tokensPerFrame": {"mode": "static", "static": {"numTokensPerFrame": 296}},
    "frames": {"mode": "strided", "minFrames": 1, "maxFrames": 8, "strided": {"frameStride": 4}},
}
QWEN = {
    "tokensPerFrame": {"mode": "dynamic", "dynamic": {"factor": 1024}},
    "frames": {"mode": "sampled", "minFrames": 4, "sampled": {"sampleFPS": 2, "temporalPatchSize": 2}},
    "maxVideoTokens": 12288,
}


@pytest.mark.parametrize(
    ("video", "headers", "expected"),
    [
        ({}, {}, 2250),  # 10 s, one frame of 225 tokens each
        (GEMMA, {}, 8 * 296),  # 10 * 24 / 4 = 60 frames, of which 8
        (GEMMA, {"duration_seconds": "0.5", "fps": "16"}, 2 * 296),  # 8 frames, every fourth
        (GEMMA, {"duration_seconds": "0.01"}, 296),
        (QWEN, {}, 10 * 225),  # 20 frames, merged by two
        (QWEN, {"duration_seconds": "1"}, 2 * 225),  # at least four frames, merged
        (QWEN, {"duration_seconds": "30", "resolution": "1280x720"}, 12288),  # 30 * 900, limited
        (QWEN, {"resolution": "1280X720"}, 10 * 900),
        ({"defaultDuration": 4, "defaultResolution": {"width": 320, "height": 320}}, {}, 400),
        (None, {"duration_seconds": "2"}, 450),
        (None, {"duration_seconds": "1e9"}, 1_000_000),
        *((None, {"duration_seconds": text}, 2250) for text in ("", "-1", "nan", "inf", "x")),
        *((None, {"resolution": text}, 2250) for text in ("", "640", "x", "0x9", "axb")),
    ],
)
def test_videos_are_sized_by_their_frames(video, headers, expected):
    assert tokens(VIDEO, None if video is None else {"video": video}, **headers) == expected


def test_prompt_has_placeholders_of_the_estimated_size_between_the_same_texts():
    request = request_of({"type": "text", "text": "A"}, IMAGE, {"type": "text", "text": "B"}, IMAGE)
    sized = counted(request, {"image": {"mode": "static", "static": {"staticToken": 10}}}).prompt
    before, after = request.body.prompt.split(b"A")[0], b"\n"
    digest = request.body.prompt[len(before) + 1 :][:16]
    item = (digest * 3)[:40]
    assert sized == before + b"A" + item + b"B" + item + after


def test_blocks_of_the_prefix_cache_are_those_of_the_estimated_size():
    request = request_of(IMAGE)
    counted(request, {"image": {"mode": "static", "static": {"staticToken": 640}}})
    ApproxPrefixCacheProducer().produce(request, POOL)
    assert request.get(PREFIX_MATCH).total_blocks == 11  # 642 tokens of 64


def test_placeholder_is_bounded_whatever_the_estimate():
    found = counted(request_of(VIDEO, headers=[("x-llm-d-video-duration-seconds", "1e9")]))
    assert found.count == 1_000_002
    assert len(found.prompt) == len("user\n") + 8192 * 4 + len("\n")
