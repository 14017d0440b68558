# SPDX-License-Identifier: Apache-2.0
"""Estimated tokens of images and videos, by the rules of models."""

from collections.abc import Sequence
from math import isfinite
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from epp.framework import Headers, Media, Parameters, headers
from epp.framework.limits import Corrected, CountOrDefault, NaturalOrDefault
from epp.framework.request import BYTES_PER_TOKEN

_Rate: TypeAlias = Annotated[float, Meta(gt=0, le=1e6), Corrected()]
_DIGEST_BYTES = 16
"""Size of the hash that a placeholder repeats."""
_MOST_BYTES = 8192 * BYTES_PER_TOKEN
"""Largest placeholder."""
_MOST_TOKENS = 1_000_000
"""Most tokens of one item, more than any context: a client may claim any size."""


class Resolution(Parameters, frozen=True):
    """Width and height in pixels."""

    width: CountOrDefault = 640
    """Width."""
    height: CountOrDefault = 360
    """Height."""


class StaticImage(Parameters, frozen=True):
    """Parameters of the mode `static`."""

    static_token: CountOrDefault = 1
    """Tokens of every image."""


class ByPixels(Parameters, frozen=True):
    """Parameters of the mode `dynamic`."""

    factor: CountOrDefault = 1024
    """Pixels to a token."""


class ImageEstimate(Parameters, frozen=True):
    """Tokens of an image: its pixels over `dynamic.factor`, or the same number for all."""

    mode: Literal["dynamic", "static"] = "dynamic"
    """`dynamic`: width times height over `factor`. `static`: `staticToken`."""
    default_resolution: Resolution = Resolution()
    """Size of images given by URL, and of formats other than PNG, GIF and JPEG."""
    static: StaticImage = StaticImage()
    """Parameters of the mode `static`."""
    dynamic: ByPixels = ByPixels()
    """Parameters of the mode `dynamic`."""

    def tokens(self, media: Media) -> int:
        """Return the tokens of an image; at least 1."""
        if self.mode == "static":
            return self.static.static_token
        pixels = media.width * media.height or self.default_resolution.width * self.default_resolution.height
        return min(max(1, pixels // self.dynamic.factor), _MOST_TOKENS)


class StaticFrame(Parameters, frozen=True):
    """Parameters of the mode `static`."""

    num_tokens_per_frame: CountOrDefault = 1
    """Tokens of every frame."""


class TokensPerFrame(Parameters, frozen=True):
    """Tokens of one frame: its pixels over `dynamic.factor`, or the same number for all."""

    mode: Literal["dynamic", "static"] = "dynamic"
    """`dynamic`: width times height over `factor`. `static`: `numTokensPerFrame`."""
    static: StaticFrame = StaticFrame()
    """Parameters of the mode `static`."""
    dynamic: ByPixels = ByPixels()
    """Parameters of the mode `dynamic`."""


class SampledFrames(Parameters, frozen=True):
    """Parameters of the mode `sampled`."""

    sample_fps: _Rate = msgspec.field(default=1.0, name="sampleFPS")
    """Frames that the model samples from each second."""
    temporal_patch_size: NaturalOrDefault = 0
    """Frames that the model merges into one; below 2 for none."""


class StridedFrames(Parameters, frozen=True):
    """Parameters of the mode `strided`."""

    default_source_fps: _Rate = msgspec.field(default=24.0, name="defaultSourceFPS")
    """Frames per second of the video without the header `x-llm-d-video-fps`."""
    frame_stride: CountOrDefault = 1
    """Distance between two sampled frames."""


class Frames(Parameters, frozen=True):
    """Frames that a model samples from a video."""

    mode: Literal["sampled", "strided"] = "sampled"
    """`sampled`: `sampleFPS` frames of each second. `strided`: every `frameStride`-th frame of the video."""
    min_frames: NaturalOrDefault = 0
    """Least frames."""
    max_frames: NaturalOrDefault = 0
    """Most frames; 0 for no limit."""
    sampled: SampledFrames = SampledFrames()
    """Parameters of the mode `sampled`."""
    strided: StridedFrames = StridedFrames()
    """Parameters of the mode `strided`."""

    def count(self, seconds: float, fps: float) -> int:
        """Return the frames of a video of that length; `fps` is 0 if unknown."""
        if self.mode == "strided":
            return self._bounded(int(seconds * (fps or self.strided.default_source_fps)) // self.strided.frame_stride)
        frames = self._bounded(int(seconds * self.sampled.sample_fps))
        return frames // max(1, self.sampled.temporal_patch_size)

    def _bounded(self, frames: int) -> int:
        frames = max(frames, self.min_frames)
        return min(frames, self.max_frames) if self.max_frames else frames


class VideoEstimate(Parameters, frozen=True):
    """Tokens of a video: its frames times the tokens of one frame."""

    default_resolution: Resolution = Resolution()
    """Size of videos without the header `x-llm-d-video-resolution`."""
    default_duration: _Rate = 10.0
    """Seconds of videos without the header `x-llm-d-video-duration-seconds`."""
    tokens_per_frame: TokensPerFrame = TokensPerFrame()
    """Tokens of one frame."""
    frames: Frames = Frames()
    """Frames of a video."""
    max_video_tokens: NaturalOrDefault = 0
    """Most tokens of one video; 0 for no limit."""

    def tokens(self, fields: Headers) -> int:
        """Return the tokens of a video of a request with these headers; at least 1."""
        seconds = _number(fields, headers.VIDEO_DURATION) or self.default_duration
        frames = self.frames.count(seconds, _number(fields, headers.VIDEO_FPS))
        most = min(self.max_video_tokens or _MOST_TOKENS, _MOST_TOKENS)
        return min(max(1, frames * self._frame_tokens(fields)), most)

    def _frame_tokens(self, fields: Headers) -> int:
        if self.tokens_per_frame.mode == "static":
            return self.tokens_per_frame.static.num_tokens_per_frame
        width, height = _resolution(fields) or (self.default_resolution.width, self.default_resolution.height)
        return max(1, width * height // self.tokens_per_frame.dynamic.factor)


def with_sizes(prompt: bytes, media: Sequence[Media], sizes: Sequence[int]) -> bytes:
    """Return the prompt with placeholders of these sizes in tokens, each up to a limit."""
    pieces: list[bytes] = []
    end = 0
    for one, size in zip(media, sizes, strict=True):
        pieces.append(prompt[end : one.offset])
        digest = prompt[one.offset : one.offset + _DIGEST_BYTES]
        length = min(max(size * BYTES_PER_TOKEN, _DIGEST_BYTES), _MOST_BYTES)
        pieces.append((digest * -(-length // _DIGEST_BYTES))[:length])
        end = one.offset + one.tokens * BYTES_PER_TOKEN
    return b"".join((*pieces, prompt[end:]))


def describes_videos(fields: Headers) -> bool:
    """Return whether a header describes the videos of the request."""
    return any(name in fields for name in (headers.VIDEO_DURATION, headers.VIDEO_FPS, headers.VIDEO_RESOLUTION))


def _number(fields: Headers, name: str) -> float:
    """Return the number in a header; 0 if it is missing, malformed or not above 0."""
    try:
        found = float(fields.get(name, ""))
    except ValueError:
        return 0.0
    return found if isfinite(found) and found > 0 else 0.0


def _resolution(fields: Headers) -> tuple[int, int] | None:
    """Return `WIDTHxHEIGHT`; None for none."""
    width, _, height = fields.get(headers.VIDEO_RESOLUTION, "").lower().partition("x")
    try:
        found = int(width[:9]), int(height[:9])
    except ValueError:
        return None
    return found if min(found) > 0 else None
