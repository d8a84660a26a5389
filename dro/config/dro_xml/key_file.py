"""Read the keys of `<route-authentication>`: one in each line of a file, and nothing of them in any message.

A line of hex digits is the bytes that they stand for, any other line the bytes of its text. From `#` on, at the
beginning of a line or behind a blank, it is a comment. A file that cannot be opened is no error yet, as configurations
are looked at on other hosts, and by users who may not know the keys; `unsupported` refuses to run them.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import Final

from dro.config.dro_xml.model import RouteAuthenticationConfig
from dro.config.reading.fetch import is_url, read_bytes
from dro.config.reading.reader import ElementReader
from dro.config.reading.record import read_record
from dro.config.um.sources import find_um_file
from dro.errors import ConfigError

KEY_BYTES_MIN: Final = 16
KEYS_MAX: Final = 8
"""Each of them is tried on what somebody has made up."""
_FILE_BYTES_MAX: Final = 1 << 16
_COMMENT: Final = re.compile(r"(^|[ \t])#.*")
_HEX: Final = re.compile(r"[0-9A-Fa-f]+")
_REMEDY: Final = "write a key as openssl rand -hex 32 prints it"


def read_route_authentication(el: ElementReader) -> RouteAuthenticationConfig | None:
    """`<route-authentication>` with the keys of its file; None when absent."""
    if not el.is_present:
        return None
    file = el.required_child("key-file")
    written = file.text()
    keys: tuple[bytes, ...] = ()
    path = unread = ""
    if written:
        path = find_um_file(written, file.file, file)
        file.effective(path)
        try:
            keys = _read_keys(path, file)
        except ConfigError as e:
            if isinstance(e.__cause__, OSError):  # of another host, or of a user with more rights
                unread = e.what
            else:
                file.error(f"{path}{f':{e.line}' if e.line else ''}: {e.what}", remedy=e.remedy)
    file.done()
    return read_record(el, RouteAuthenticationConfig, key_file=path, keys=keys, unread=unread)


def _read_keys(path: str, el: ElementReader) -> tuple[bytes, ...]:
    if is_url(path):
        raise ConfigError("keys are read from a file of this host only", remedy="name a file")
    raw = read_bytes(path, _FILE_BYTES_MAX, "the keys")
    with suppress(OSError):  # replaced at this moment
        if os.stat(path).st_mode & stat.S_IROTH:
            el.warning(f"{path}: every user of this host can read the keys; chmod o-rwx keeps them from others")
    try:
        lines = [line.strip(" \t\r") for line in raw.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise ConfigError("is no text in UTF-8", remedy=_REMEDY) from None
    keys = [_key(text, at) for at, line in enumerate(lines, start=1) if (text := _COMMENT.sub("", line).rstrip())]
    if not keys:
        raise ConfigError("has no key", remedy=_REMEDY)
    if len(keys) > KEYS_MAX:
        raise ConfigError(f"{len(keys)} keys, at most {KEYS_MAX} are tried", remedy="remove the old ones")
    return tuple(keys)


def _key(text: str, line: int) -> bytes:
    if " " in text or not text.isprintable():
        raise ConfigError("a key with a blank, or a character that does not print", line=line, remedy=_REMEDY)
    is_hex = _HEX.fullmatch(text) is not None
    if is_hex and len(text) % 2:
        raise ConfigError("an odd number of hex digits", line=line, remedy=_REMEDY)
    key = bytes.fromhex(text) if is_hex else text.encode()
    if len(key) < KEY_BYTES_MIN:
        what = f"a key of {len(key)} bytes{', two hex digits each' if is_hex else ''}, it needs {KEY_BYTES_MIN}"
        raise ConfigError(what, line=line, remedy=_REMEDY)
    return key
