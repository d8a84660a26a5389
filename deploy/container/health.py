"""The health check of the image: `/healthz` of the DRO's web monitor, or its admin socket where it has no monitor.

One line says what was asked and what came of it; exit status 0 for a healthy DRO, otherwise 1.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Final
from xml.etree import ElementTree

from dro.errors import DroError
from supervisor.admin.client import Client, find_dro
from supervisor.admin.status import ConfigRecord

LIMIT_S: Final = 3.0
_ALL: Final = "*"
_NO_PROXY: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def monitor_address() -> str:
    """`host:port` of the web monitor of the one DRO that runs here; empty when it has none. Raises: DroError."""
    with Client(find_dro()) as client:
        text = client.ask(ConfigRecord, "config", within_s=LIMIT_S).text
    where = (ElementTree.fromstring(text.encode()).findtext("daemon/web-monitor") or "").strip()
    host, _, port = where.rpartition(":")
    return f"{'127.0.0.1' if host == _ALL else host}:{port}" if where else ""


def ask(address: str) -> tuple[int, str]:
    """The status and the first line of `/healthz`; status 0 when nothing answers."""
    try:
        with _NO_PROXY.open(f"http://{address}/healthz", timeout=LIMIT_S) as answer:
            return answer.status, _line(answer.read(4096))
    except urllib.error.HTTPError as e:
        return e.code, _line(e.read(4096))
    except (OSError, HTTPException) as e:
        return 0, str(e).strip()


def _line(body: bytes) -> str:
    return body.decode("utf-8", "replace").strip().partition("\n")[0]


def main() -> int:
    """The exit status."""
    try:
        address = monitor_address()
    except DroError as e:
        print(f"unhealthy: {e}")
        return 1
    if not address:
        print("healthy: the DRO answers on its admin socket; without <web-monitor> nothing else is asked")
        return 0
    status, text = ask(address)
    print(f"{'healthy' if status == 200 else 'unhealthy'}: http://{address}/healthz: {status or 'no answer'}: {text}")
    return int(status != 200)


if __name__ == "__main__":
    sys.exit(main())
