# SPDX-License-Identifier: Apache-2.0
"""Errors for malformed JSON bodies: position, found and expected value."""

import re

import msgspec

from epp.framework import Headers
from epp.framework.errors import MalformedBodyError
from epp.framework.messages import quoted

_WRONG_TYPE = re.compile(r"Expected `([^`]+)`(?: (>=|<=) (-?\d+))?(?:, got `([^`]+)`)?(?: - at `\$\.?([^`]*)`)?")
_MISSING = re.compile(r"Object missing required field `([^`]+)`(?: - at `\$\.?([^`]*)`)?")
_OTHER = re.compile(r"(.*?)(?: - at `\$\.?([^`]*)`)?")
_POSITION = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
_TYPES = {
    "array": "an array",
    "bool": "true or false",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
}
_HALF_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
_BOUNDS = {">=": "at least", "<=": "at most"}
_TRAILING = "trailing characters"
_EXPECTED = {
    "invalid character": "a JSON value was expected",
    "object keys must be strings": "a key in double quotes was expected",
    _TRAILING: "nothing was expected after the JSON value",
    "trailing comma in object": "a key was expected after the comma",
    "trailing comma in array": "a value was expected after the comma",
}
_FIRST_PRINTABLE = 0x20


def wrong_shape(error: msgspec.ValidationError) -> MalformedBodyError:
    """Return the error for valid JSON of the wrong shape: it names the place and both types."""
    text = str(error)
    if found := _WRONG_TYPE.fullmatch(text):
        types, bound, number, got, path = found.groups()
        wanted = _either(types) if bound is None else f"{_either(types)} of {_BOUNDS[bound]} {number}"
        instead = "" if got is None else f", not {_TYPES.get(got, got)}"
        kind = "invalid_type" if bound is None else "invalid_value"
        return _shape_error(path, f"must be {wanted}{instead}", kind)
    if found := _MISSING.fullmatch(text):
        field, path = found.groups()
        return _shape_error(f"{path}.{field}" if path else field, "is missing: add it", "missing_required_parameter")
    found = _OTHER.fullmatch(text)
    problem, path = found.groups() if found else (text, "")
    return _shape_error(path, f"is not accepted: {problem[:1].lower()}{problem[1:]}", "invalid_value")


def not_json(error: Exception, body: bytes, headers: Headers) -> MalformedBodyError:
    """Return the error for a body that is not valid JSON, with the place and a possible cause.

    The message quotes no text of the body, because that may be part of the prompt.
    """
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        return MalformedBodyError(
            f"the request body has content-encoding {quoted(encoding)}, which is not read here: "
            "send it as plain JSON, uncompressed"
        )
    return MalformedBodyError(f"the request body is not valid JSON: {_problem(error, body)}{_hint(headers)}")


def _problem(error: Exception, body: bytes) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        try:
            body.decode()
        except UnicodeDecodeError as whole:  # `error` has the position within a string
            return f"{_place(body, whole.start)} is not UTF-8"
    found = _POSITION.fullmatch(str(error))
    if found is None:
        half = _HALF_PAIR.search(body) if b"\\u" in body else None  # msgspec reports such a string as unterminated
        if half is not None:
            place = _place(body, half.start())
            return f"at {place}, half of a surrogate pair was found, or it ends before it is complete"
        return f"it ends at {_place(body, len(body))}, before it is complete"
    position = int(found[2]) - (found[1] == _TRAILING)  # msgspec has read past the first such character
    if found[1] == "invalid character" and position < len(body) and body[position] < _FIRST_PRINTABLE:
        expected = "a control character was found: inside a string, escape it, a line break as \\n"
    else:
        expected = _EXPECTED.get(found[1], found[1])
    return f"at {_place(body, position)}, {expected}"


def _place(body: bytes, position: int) -> str:
    line, last = body.count(b"\n", 0, position) + 1, body.rfind(b"\n", 0, position)
    return f"line {line}, column {position - last} (byte {position})"


def _hint(headers: Headers) -> str:
    content_type = headers.get("content-type", "")
    if not content_type or "json" in content_type.lower():
        return ""
    return f"; its content-type is {quoted(content_type)}: send JSON, with content-type: application/json"


def _either(types: str) -> str:
    """Name the types, without null, which stands for absence, and without integers beside other numbers."""
    names = types.split(" | ")
    kept = [name for name in names if name != "null" and not (name == "int" and "float" in names)]
    *others, last = [_TYPES.get(name, name) for name in kept or names]
    return f"{', '.join(others)} or {last}" if others else last


def _shape_error(path: str | None, problem: str, kind: str) -> MalformedBodyError:
    subject = f'"{path}"' if path else "the JSON of the request body"
    return MalformedBodyError(f"{subject} {problem}", param=path or None, kind=kind)


def empty(param: str, remedy: str) -> MalformedBodyError:
    """Return the error for a required part of the body."""
    return MalformedBodyError(
        f'"{param}" is missing or empty: {remedy}', param=param, kind="missing_required_parameter"
    )


def within(error: msgspec.ValidationError, place: str) -> msgspec.ValidationError:
    """Return the error of a value as an error of the whole body; `place` is the value's, such as `$.prompt`."""
    text = str(error)
    if "at `$" in text:
        return msgspec.ValidationError(text.replace("at `$", f"at `{place}", 1))
    return msgspec.ValidationError(f"{text} - at `{place}`")
