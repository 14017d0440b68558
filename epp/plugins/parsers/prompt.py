"""Writes a prompt as one canonical run of bytes: equal prefixes here are equal prefixes in the engine."""

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec
import xxhash

from epp.framework.request import BYTES_PER_TOKEN
from epp.plugins.parsers.json_parser import ABSENT

Content: TypeAlias = str | list[msgspec.Raw] | None

_IMAGE_TOKENS = 225  # 640 x 360 pixels, 1,024 to a token
_AUDIO_TOKENS = 250  # 10 seconds, 25 tokens each
_VIDEO_TOKENS = 2250  # 10 seconds, one image each
_MEDIA_TOKENS: Mapping[str, int] = MappingProxyType(
    {
        "image": _IMAGE_TOKENS,
        "image_embeds": _IMAGE_TOKENS,
        "image_pil": _IMAGE_TOKENS,
        "image_url": _IMAGE_TOKENS,
        "input_image": _IMAGE_TOKENS,
        "audio_url": _AUDIO_TOKENS,
        "video": _VIDEO_TOKENS,
        "video_url": _VIDEO_TOKENS,
    }
)
"""Tokens that content of unknown size counts as: what llm-d-router's token estimate takes by default."""
_AUDIO_BASE64_BYTES_PER_TOKEN = 853  # 16,000 bytes a second over 25 tokens a second, four base64 bytes for three
_DIGEST_TOKENS = 4
_MOST_MEDIA = 256
_TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
_EMPTY_JSON = (b"", b"null", b"[]")


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    source: msgspec.Raw = ABSENT


_decode_part = msgspec.json.Decoder(_Part).decode


class PromptWriter:
    """Gathers a prompt piece by piece; whatever is only ever appended leaves the bytes before it as they are.

    Text is its UTF-8 bytes, media their stand-ins, anything else the JSON it came as. A message is its role, newline,
    content, tool calls, newline. Four bytes count as one token. Media beyond the 256th of a prompt count four tokens
    each, so that no body grows much by being read.
    """

    __slots__ = ("_media_left", "_pieces", "media_items")

    def __init__(self) -> None:
        self.media_items = 0
        """Images, audio clips and videos written so far."""
        self._pieces: list[bytes] = []
        self._media_left = _MOST_MEDIA

    def written(self) -> bytes:
        """Return all that was written."""
        return b"".join(self._pieces)

    def message(self, role: str, content: Content, tool_calls: msgspec.Raw = ABSENT) -> None:
        """Write one message of a conversation."""
        self.text(role + "\n")
        self.content(content)
        self.json(tool_calls)
        self.text("\n")

    def tools(self, tools: msgspec.Raw) -> None:
        """Write the tools' JSON and a newline; nothing for none."""
        if self.json(tools):
            self.text("\n")

    def content(self, content: Content) -> None:
        """Write a text, or content parts one after the other."""
        if isinstance(content, str):
            self.text(content)
        elif content:
            for raw in content:
                self.part(raw)

    def part(self, raw: msgspec.Raw) -> None:
        """Write one content part; one unlike any known here is for the engine to judge, and counts as its JSON."""
        try:
            part = _decode_part(raw)
        except msgspec.ValidationError:
            self.json(raw)
            return
        if part.type in _TEXT_TYPES and part.text is not None:
            self.text(part.text)
        elif part.type in _MEDIA_TOKENS:
            self.media_items += 1
            self.opaque(bytes(part.source) or bytes(raw), _MEDIA_TOKENS[part.type])
        elif part.type == "input_audio":
            self.media_items += 1
            found = bytes(raw)
            self.opaque(found, len(found) // _AUDIO_BASE64_BYTES_PER_TOKEN)
        else:
            self.json(raw)

    def text(self, text: str) -> None:
        """Write a text as it is."""
        self._pieces.append(text.encode())

    def json(self, raw: msgspec.Raw) -> bool:
        """Write JSON as it came, and tell whether there was any: absent, null and the empty list are nothing."""
        found = bytes(raw)
        if found in _EMPTY_JSON:
            return False
        self._pieces.append(found)
        return True

    def packed(self, ids: list[int]) -> None:
        """Write token ids."""
        self._pieces.append(pack(ids))

    def opaque(self, found: bytes, tokens: int) -> None:
        """Write the stand-in of something that becomes about so many tokens, four at the least."""
        if self._media_left <= 0:
            tokens = 0
        self._media_left -= 1
        self._pieces.append(stand_in(found, max(tokens, _DIGEST_TOKENS)))


def stand_in(found: bytes, tokens: int) -> bytes:
    """Return what stands in a prompt for media of that identity: a 128-bit hash, over and over, for so many tokens."""
    size = tokens * BYTES_PER_TOKEN
    digest = xxhash.xxh3_128_digest(found)
    return (digest * -(-size // len(digest)))[:size]


def pack(ids: list[int]) -> bytes:
    """Return token ids, each in [0, 2^32), as four little-endian bytes apiece."""
    return struct.pack(f"<{len(ids)}I", *ids)
