# SPDX-License-Identifier: Apache-2.0
"""The prompt of a request as bytes, with placeholders for media."""

import re
import struct
import sys
from array import array
from binascii import Error, a2b_base64
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

import msgspec
import numpy as np
import xxhash

from epp.framework import RequestBody
from epp.framework.request import BYTES_PER_TOKEN, Media
from epp.plugins.parsers.json_parser import (
    ABSENT,
    MOST_TEXT,
    Common,
    Limit,
    TokenId,
    count_of,
    error_at,
    limit_exceeded,
    missing_field,
    request_body,
)

T = TypeVar("T")

_INLINE = re.compile(rb"""(?:;base64,|"data"\s*:\s*")([A-Za-z0-9+/\\]+)""")
_KEYS_BYTES = 1024
_HEAD_BYTES = (4 * 1024, 24 * 1024)
"""Sizes of the base64 text to decode, in this order: a JPEG has its size after its metadata."""
_MOST_SEGMENTS = 64
_LEAD = 0xFF
_PNG = b"\x89PNG\r\n\x1a\n"
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def pixels(part: bytes) -> tuple[int, int]:
    """Return width and height of the image in the JSON of a content part; zeros if it has only a URL.

    Supports PNG, GIF and JPEG in base64, in a data URL or in the member `data`.
    """
    found = _INLINE.search(part, 0, _KEYS_BYTES)
    if found is None:
        return 0, 0
    for size in _HEAD_BYTES:
        text = part[found.start(1) : found.start(1) + size].partition(b'"')[0].replace(b"\\/", b"/")
        try:
            head = a2b_base64(text[: len(text) // 4 * 4])
            if head.startswith(_PNG):
                return struct.unpack_from(">II", head, 16)
            if head.startswith((b"GIF87a", b"GIF89a")):
                return struct.unpack_from("<HH", head, 6)
            if not head.startswith(b"\xff\xd8"):
                break
            return _jpeg_pixels(head)
        except Error:
            break
        except struct.error:  # the head ends too early
            continue
    return 0, 0


def _jpeg_pixels(head: bytes) -> tuple[int, int]:
    """Return the size in the first frame header; raises struct.error if the head ends before it."""
    at = 2
    for _ in range(_MOST_SEGMENTS):
        lead, marker = struct.unpack_from(">BB", head, at)
        if lead != _LEAD:
            break
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        at += 2 if marker in _WITHOUT_LENGTH else 2 + struct.unpack_from(">H", head, at + 2)[0]
    return 0, 0


Content: TypeAlias = str | list[msgspec.Raw] | None

_PIXELS_PER_TOKEN = 1024
_IMAGE_TOKENS = 225  # 640 x 360 pixels
_MOST_IMAGE_TOKENS = 8192  # 8 megapixels; engines scale larger ones down
_AUDIO_TOKENS = 250  # 10 seconds, 25 tokens each
_VIDEO_TOKENS = 2250  # 10 seconds, one image each
_Kind: TypeAlias = Literal["image", "audio", "video"]
_MEDIA: Mapping[str, tuple[_Kind, int]] = MappingProxyType(
    {
        "image": ("image", _IMAGE_TOKENS),
        "image_embeds": ("image", _IMAGE_TOKENS),
        "image_pil": ("image", _IMAGE_TOKENS),
        "image_url": ("image", _IMAGE_TOKENS),
        "input_image": ("image", _IMAGE_TOKENS),
        "audio_url": ("audio", _AUDIO_TOKENS),
        "video": ("video", _VIDEO_TOKENS),
        "video_url": ("video", _VIDEO_TOKENS),
    }
)
"""Types of content parts, and the estimated tokens of media of unknown size; the defaults of llm-d-router."""
_AUDIO = "input_audio"
_AUDIO_BASE64_BYTES_PER_TOKEN = 853  # 16,000 bytes a second over 25 tokens a second, four base64 bytes for three
_DIGEST_TOKENS = 4
_MOST_MEDIA = 256
_MOST_PROMPTS = 256
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_EMPTY_JSON = (b"", b"null", b"[]")


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    source: msgspec.Raw = ABSENT


_decode_part = msgspec.json.Decoder(_Part).decode


def decode_object(decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw) -> T | None:
    """Return a JSON object of a known shape; None for other JSON, which is left to the engine."""
    try:
        return decode(raw) if bytes(memoryview(raw)[:1]) == b"{" else None
    except msgspec.ValidationError:
        return None


class PromptWriter:
    """Builds a prompt by appending: bytes already written never change.

    Text is written as UTF-8, media as placeholders, other content as its JSON. A message is its role, newline, content,
    tool calls, newline. Four bytes count as one token. Beyond 256 media in a prompt, each counts four tokens, to bound
    the size of the prompt.
    """

    def __init__(self) -> None:
        self._media_items = 0
        """Images, audio clips and videos written so far."""
        self.is_token_ids = False
        """Whether the prompt is token ids."""
        self._pieces: list[bytes] = []
        self._ends: list[int] = []
        self._joins_last = False
        self._media: list[tuple[int, Media]] = []  # with the index of their pieces
        self._hashes: list[tuple[str, bytes]] = []
        self._media_left = _MOST_MEDIA
        self._text_left = MOST_TEXT

    def body(self, common: Common, limit: Limit = None) -> RequestBody:
        """Return the parsed body with this prompt; raises MalformedBodyError for a limit beyond 64 bits."""
        starts = list(accumulate(map(len, self._pieces), initial=0)) if self._media or self._ends else []
        media = tuple([msgspec.structs.replace(media, offset=starts[piece]) for piece, media in self._media])
        ends = self._ends if self._joins_last else self._ends[:-1]
        if ends:
            ends = [*ends, starts[-1]]
        return request_body(
            common,
            b"".join(self._pieces),
            limit,
            self._media_items,
            media=media,
            media_hashes=tuple(self._hashes),
            ends=tuple(ends),
            is_token_ids=self.is_token_ids,
        )

    def prompts(self, prompts: list[T], encode: Callable[[list[T]], bytes]) -> None:
        """Write a list of prompts, before other content; the 256th and later prompts count as one."""
        separate = [encode([prompt]) for prompt in prompts[: _MOST_PROMPTS - 1]]
        self._pieces += separate
        self._ends += accumulate(map(len, separate))
        if len(prompts) > len(separate):
            self._joins_last = True
            self._pieces.append(encode(prompts[len(separate) :]))

    def message(self, role: str, content: Content, tool_calls: msgspec.Raw = ABSENT) -> None:
        if isinstance(content, str) and tool_calls is ABSENT:  # the usual case
            self.text(f"{role}\n{content}\n")
            return
        self.text(role + "\n")
        if isinstance(content, str):
            self.text(content)
        else:
            for raw in content or ():
                self.part(raw)
        self.json(tool_calls)
        self.text("\n")

    def tools(self, tools: msgspec.Raw) -> None:
        """Write the JSON of the tools and a newline, if there are tools."""
        if self.json(tools):
            self.text("\n")

    def part(self, raw: msgspec.Raw) -> None:
        """Write one content part; unknown parts as JSON."""
        part = decode_object(_decode_part, raw) or _Part()
        if part.type in _TEXT_TYPES and part.text is not None:
            self.text(part.text)
        elif part.type == _AUDIO:
            self._item("audio", bytes(raw), len(memoryview(raw)) // _AUDIO_BASE64_BYTES_PER_TOKEN)
        elif part.type in _MEDIA:
            kind, tokens = _MEDIA[part.type]
            identity = bytes(part.source) or bytes(raw)
            width, height = pixels(identity) if kind == "image" else (0, 0)
            if width and height:
                tokens = min(width * height // _PIXELS_PER_TOKEN, _MOST_IMAGE_TOKENS)
            self._item(kind, identity, tokens, width, height)
        else:
            self.json(raw)

    def text(self, text: str) -> None:
        """Write a text; raises MalformedBodyError beyond the limit of a prompt."""
        self._count_text(len(text))
        self._pieces.append(text.encode())

    def json(self, raw: msgspec.Raw) -> bool:
        """Write JSON unchanged; return false for absent, null and empty lists."""
        if raw is ABSENT:
            return False
        found = bytes(raw)
        if found in _EMPTY_JSON:
            return False
        self._count_text(len(found))
        self._pieces.append(found)
        return True

    def packed(self, ids: bytes) -> None:
        """Write token ids, packed, into an empty prompt."""
        self.is_token_ids = True
        self._pieces.append(ids)

    def opaque(self, digest: bytes, tokens: int) -> None:
        """Write a placeholder of `tokens` tokens, at least four, for media with this hash."""
        if self._media_left <= 0:
            tokens = 0
        self._media_left -= 1
        self._pieces.append(placeholder(digest, max(tokens, _DIGEST_TOKENS)))

    def _count_text(self, size: int) -> None:
        self._text_left -= size
        if self._text_left < 0:
            raise limit_exceeded("characters of text", MOST_TEXT)

    def _item(self, kind: _Kind, identity: bytes, tokens: int, width: int = 0, height: int = 0) -> None:
        self._media_items += 1
        digest = xxhash.xxh3_128_digest(identity)
        if self._media_left > 0:
            self._media.append((len(self._pieces), Media(kind, 0, max(tokens, _DIGEST_TOKENS), width, height)))
            self._hashes.append((kind, digest))
        self.opaque(digest, tokens)


class Written(Common, gc=False):
    """Body whose prompt is written part by part."""

    @property
    def output_limit(self) -> Limit:
        return None

    def write(self, prompt: PromptWriter) -> None:
        """Write the prompt; raises MalformedBodyError without one."""
        raise NotImplementedError

    def read(self) -> RequestBody:
        prompt = PromptWriter()
        self.write(prompt)
        return prompt.body(self, self.output_limit)


def placeholder(digest: bytes, tokens: int) -> bytes:
    """Return the placeholder of media: their hash, repeated to the length of `tokens` tokens."""
    return (digest * -(-tokens * BYTES_PER_TOKEN // len(digest)))[: tokens * BYTES_PER_TOKEN]


_decode_ids = msgspec.json.Decoder(list[TokenId] | None).decode
_MOST_ID = 2**32 - 1
MOST_READ_IDS = 128 * 1024
"""Maximum token ids of a prompt that are read: the number that prefix caches look up. Further ids are only counted."""
_ID_BYTES = 12
"""Bytes of one token id in JSON: ten digits, a comma and a space."""
_DIGITS_AND_SPACE = b"0123456789, \t\n\r"


def pack(ids: Iterable[int]) -> bytes:
    """Return token ids, each in [0, 2^32), as bytes."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def packed_json(raw: bytes, most: int = MOST_READ_IDS) -> bytes | None:
    """Return a JSON array of token ids as bytes; None for any other JSON. Ids after the first `most` are zeros."""
    inside = raw[1:-1].strip()
    count = count_of(",", inside) + 1
    head = inside[: most * _ID_BYTES]
    if len(head) < len(inside):
        head = head[: max(head.rfind(b","), 0)]
    if not inside or head.translate(None, _DIGITS_AND_SPACE):
        return None
    read = min(most, count if len(head) == len(inside) else count_of(",", head) + 1)
    # numbers beyond 64 bits become the largest int64
    ids = np.fromstring(head.decode(), np.int64, count=read, sep=",") if read and head else np.zeros(0, np.int64)
    if ids.max(initial=0) > _MOST_ID:
        return None
    return ids.astype("<u4").tobytes() + bytes((count - len(ids)) * BYTES_PER_TOKEN)


def packed_lists(raw: bytes) -> list[bytes] | None:
    """Return the bytes of each array in a JSON array of arrays of token ids; the 256th and later arrays are joined.

    Returns None for any other JSON, and if an array is empty.
    """
    if raw[1:_ID_BYTES].lstrip()[:1] != b"[":
        return None
    compact = raw.translate(None, b" \t\n\r")
    if compact.count(b"],[") + 2 != count_of("[", compact):
        return None
    *separate, rest = compact[2:-2].split(b"],[", _MOST_PROMPTS - 1)
    if b"[]" in rest:
        return None
    every = [packed_json(b"[%b]" % each, sys.maxsize) for each in (*separate, rest.replace(b"],[", b","))]
    found = [packed for packed in every if packed is not None]
    return found if len(found) == len(every) else None


def read_ids(raw: msgspec.Raw, field: str) -> bytes:
    """Return a JSON array of token ids as bytes; raises ValidationError for other elements.

    Raises MalformedBodyError for null, absence and the empty array.
    """
    text = bytes(raw)
    packed = packed_json(text) if text.startswith(b"[") else None
    if packed is None:
        try:
            packed = pack(_decode_ids(text or b"null") or ())
        except msgspec.ValidationError as error:
            raise error_at(error, f"$.{field}") from error
    if not packed:
        raise missing_field(field, "send the prompt as token ids")
    return packed
