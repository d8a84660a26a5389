"""Bytes of configuration files, local or from `http:` and `ftp:` addresses: bounded in size, and in time on a network.

Source: DRO guide, chapter 7.2 (`https:` and `sftp:` are not supported). Guess: a redirection may lead to `http:` and
`ftp:` addresses only, and the proxy settings of the environment are not used.
"""

from __future__ import annotations

import os
import select
import stat
import time
import urllib.error
import urllib.request
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Final
from urllib.parse import urljoin, urlsplit

from dro.errors import ConfigError

TIMEOUT_S: Final = 5.0  # of one step
TOTAL_S: Final = 15.0  # of the body, and until something comes through a FIFO
_CHUNK: Final = 64 * 1024
_SCHEMES: Final = ("http", "ftp")


def is_url(name: str) -> bool:
    """Whether a name is an address on a network, of whatever scheme."""
    return "://" in name


def beside(name: str, file: str) -> str:
    """`name` as it is meant inside `file`: relative to it, unless it is absolute."""
    if is_url(name):
        return name
    if is_url(file):
        return urljoin(file, name)
    return str(Path(file).parent / name)


def read_bytes(name: str, limit: int, what: str) -> bytes:
    """All bytes of a file or address; `what` names it in messages.    Raises: ConfigError."""
    if not name:
        raise ConfigError(f"cannot read {what}: its name is empty", remedy="name a file")
    try:
        raw = _fetch(name, limit) if is_url(name) else _read(name, limit)
    except ConfigError as e:
        raise ConfigError(f"cannot read {what}: {e.what}", file=name, remedy=e.remedy) from e
    except (OSError, ValueError, HTTPException) as e:
        why = e.strerror if isinstance(e, OSError) and e.strerror else str(e) or type(e).__name__
        raise ConfigError(f"cannot read {what}: {why[:200]}", file=name, remedy="check name and permissions") from e
    if len(raw) > limit:
        raise ConfigError(f"larger than {limit} bytes", file=name, remedy="is this a configuration file?")
    return raw


def _read(name: str, limit: int) -> bytes:
    with open(name, "rb", opener=_open_at_once) as f:
        if stat.S_ISFIFO(os.fstat(f.fileno()).st_mode) and not select.select([f], [], [], TOTAL_S)[0]:
            what = f"a FIFO from which nothing came in {TOTAL_S:.0f} seconds"
            raise ConfigError(what, remedy="start what writes to it, or name a regular file")
        os.set_blocking(f.fileno(), True)
        return f.read(limit + 1)


def _open_at_once(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)  # a FIFO would otherwise be waited for here, without a limit


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirections within the permitted schemes."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in _SCHEMES:
            fp.close()
            raise ConfigError(f"redirected to {newurl[:200]}", remedy="use an http: or ftp: address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Ftp(urllib.request.FTPHandler):
    """Knows its connection, which stays open when the server has no such file."""

    connection: urllib.request.ftpwrapper | None = None

    def connect_ftp(
        self, user: str, passwd: str, host: str, port: int, dirs: str, timeout: float
    ) -> urllib.request.ftpwrapper:
        self.connection = super().connect_ftp(user, passwd, host, port, dirs, timeout)
        return self.connection

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


def _reason(error: urllib.error.URLError) -> str:
    """Find the reason inside an error; an error of a server is wrapped twice."""
    reason = error.reason
    while isinstance(reason, urllib.error.URLError):
        reason = reason.reason
    return (isinstance(reason, OSError) and reason.strerror) or str(reason)


def _fetch(url: str, limit: int) -> bytes:
    scheme = urlsplit(url).scheme.lower()
    if scheme not in _SCHEMES:
        raise ConfigError(f"{scheme}: is not supported", remedy="use a file, or an http: or ftp: address")
    opener = urllib.request.OpenerDirector()
    ftp = _Ftp()
    for handler in (
        urllib.request.HTTPHandler(),
        ftp,
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    deadline = time.monotonic() + TOTAL_S
    parts: list[bytes] = []
    size = 0
    try:
        with opener.open(url, timeout=TIMEOUT_S) as answer:
            while size <= limit:
                part = answer.read1(_CHUNK)
                if not part:
                    break
                if time.monotonic() > deadline:
                    raise ConfigError(f"not complete after {TOTAL_S:.0f} seconds", remedy="check the server")
                parts.append(part)
                size += len(part)
    except urllib.error.HTTPError as e:
        e.close()
        raise ConfigError(f"the server says {e.code} {str(e.reason)[:100]}", remedy="check the address") from e
    except urllib.error.URLError as e:
        raise ConfigError(_reason(e)[:200], remedy="check the address and the network") from e
    except TimeoutError as e:
        raise ConfigError("no answer in time", remedy="check the address and the network") from e
    finally:
        ftp.close()
    return b"".join(parts)
