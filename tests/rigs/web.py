"""Requests to a web monitor."""

from __future__ import annotations

import contextlib
import http.client


def fetch(where: str, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of what is at `where` (`address:port`); 0 when nobody listens, or ends in the middle of it."""
    connection = http.client.HTTPConnection(where, timeout=30)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
