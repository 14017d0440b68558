# SPDX-License-Identifier: Apache-2.0
"""A TLS 1.3 client that renews its keys at will, which Python's own cannot: by OpenSSL's library."""

import ctypes
import ctypes.util

_HERE, _POINTER = ctypes.c_int, ctypes.c_void_p
_SIGNATURES = {
    "TLS_client_method": (_POINTER,),
    "SSL_CTX_new": (_POINTER, _POINTER),
    "SSL_CTX_free": (None, _POINTER),
    "SSL_CTX_set_alpn_protos": (_HERE, _POINTER, ctypes.c_char_p, ctypes.c_uint),
    "SSL_new": (_POINTER, _POINTER),
    "SSL_free": (None, _POINTER),
    "SSL_set_bio": (None, _POINTER, _POINTER, _POINTER),
    "SSL_set_connect_state": (None, _POINTER),
    "SSL_do_handshake": (_HERE, _POINTER),
    "SSL_key_update": (_HERE, _POINTER, _HERE),
    "SSL_read": (_HERE, _POINTER, ctypes.c_char_p, _HERE),
    "SSL_write": (_HERE, _POINTER, ctypes.c_char_p, _HERE),
    "BIO_s_mem": (_POINTER,),
    "BIO_new": (_POINTER, _POINTER),
    "BIO_read": (_HERE, _POINTER, ctypes.c_char_p, _HERE),
    "BIO_write": (_HERE, _POINTER, ctypes.c_char_p, _HERE),
}
_PIECE = 65_536


def _library() -> ctypes.CDLL | None:
    name = ctypes.util.find_library("ssl")
    if name is None:
        return None
    library = ctypes.CDLL(name)
    for function, (result, *arguments) in _SIGNATURES.items():
        found = getattr(library, function, None)
        if found is None:
            return None
        found.restype, found.argtypes = result, arguments
    return library


library = _library()
"""None where there is none."""


class RenewingClient:
    """Bytes in, bytes out: `arrived` what the server sent, send what `leaving` returns."""

    def __init__(self) -> None:
        self._lib = lib = library
        self._context = lib.SSL_CTX_new(lib.TLS_client_method())
        lib.SSL_CTX_set_alpn_protos(self._context, b"\x02h2", 3)
        self._session = lib.SSL_new(self._context)
        self._in, self._out = lib.BIO_new(lib.BIO_s_mem()), lib.BIO_new(lib.BIO_s_mem())
        lib.SSL_set_bio(self._session, self._in, self._out)
        lib.SSL_set_connect_state(self._session)

    def close(self) -> None:
        self._lib.SSL_free(self._session)
        self._lib.SSL_CTX_free(self._context)

    def arrived(self, data: bytes) -> None:
        self._lib.BIO_write(self._in, data, len(data))

    def leaving(self) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE)
        found = b""
        while (size := self._lib.BIO_read(self._out, buffer, _PIECE)) > 0:
            found += buffer.raw[:size]
        return found

    def shake_hands(self) -> bool:
        """Go on with the handshake; return whether it is complete."""
        return bool(self._lib.SSL_do_handshake(self._session) == 1)

    def renew(self, *, ask: bool) -> None:
        """Renew the keys of this side, and `ask` the server to renew its own."""
        assert self._lib.SSL_key_update(self._session, int(ask)) == 1
        assert self.shake_hands()

    def write(self, data: bytes) -> None:
        assert self._lib.SSL_write(self._session, data, len(data)) == len(data)

    def read(self) -> bytes:
        """Return what can be decrypted of what arrived."""
        buffer = ctypes.create_string_buffer(_PIECE)
        found = b""
        while (size := self._lib.SSL_read(self._session, buffer, _PIECE)) > 0:
            found += buffer.raw[:size]
        return found
