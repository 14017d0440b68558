# SPDX-License-Identifier: Apache-2.0
"""Sizes of images in requests, in each format."""

import json
import struct
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.plugins.parsers.prompt import pixels
from tests.support.apis import parse


def png(width, height):
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes(50)


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(50)


def jpeg(width, height, metadata=b""):
    metadata = struct.pack(">BBH", 0xFF, 0xE1, len(metadata) + 2) + metadata
    frame = struct.pack(">BBHBHHB", 0xFF, 0xC2, 17, 8, height, width, 3)
    return b"\xff\xd8" + metadata + b"\xff\xd0" + frame + bytes(50)


def data_url(file):
    return "data:image/any;base64," + b64encode(file).decode()


def chat(url):
    part = {"type": "image_url", "image_url": {"url": url}}
    return parse("chat/completions", {"model": "m", "messages": [{"role": "user", "content": [part]}]})


@pytest.mark.parametrize(
    "file", [png(1024, 768), gif(1024, 768), jpeg(1024, 768), jpeg(1024, 768, b"\xff\xc0" + bytes(15_000))]
)
def test_image_of_a_data_url_counts_a_token_for_1024_pixels(file):
    body = chat(data_url(file))
    (image,) = body.media
    assert (image.width, image.height, image.tokens) == (1024, 768, 768)
    assert body.prompt_tokens == 768 + 2  # and `user` with two newlines


def test_image_of_anthropics_api_is_sized_too():
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(png(640, 640)).decode()}
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    (image,) = parse("messages", body).media
    assert (image.kind, image.tokens) == ("image", 400)


def test_slashes_may_be_escaped_in_json():
    file = png(1024, 1024) + b"\xff" * 30
    part = json.dumps({"url": data_url(file)}).replace("/", "\\/").encode()
    assert b"\\/" in part
    assert pixels(part) == (1024, 1024)


@pytest.mark.parametrize(
    "url",
    [
        "https://a/b.png",
        data_url(b"RIFF....WEBP" + bytes(40)),
        data_url(png(1, 1)[:20]),
        data_url(jpeg(1, 1)[:8]),
        data_url(jpeg(0, 0)),
        data_url(jpeg(1024, 768, bytes(20_000))),  # too far behind
        data_url(b"\xff\xd8" + b"\xff\xd0" * 1000),
        "data:image/png;base64,%%%",
        "data:image/png;base64,",
    ],
)
def test_image_of_unknown_size_counts_as_640_by_360(url):
    (image,) = chat(url).media
    assert (image.width * image.height, image.tokens) == (0, 225)


def test_size_that_a_client_makes_up_does_not_make_the_prompt_large():
    body = chat(data_url(png(2**31, 2**31)))
    assert body.prompt_tokens == 8192 + 2
    assert chat(data_url(png(1, 1))).prompt_tokens == 4 + 2  # the least of a placeholder


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"\xff\xd8", b"\xff\xd8\xff\xe1"])
)
def test_no_file_raises(rest, head):
    width, height = pixels(b'"data": "' + b64encode(head + rest) + b'"')
    assert width >= 0
    assert height >= 0
