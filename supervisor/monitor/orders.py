"""Orders over HTTP: what `tnwgdctl portal` and others do, for who has a token with a role that may.

Off unless the environment variable `DRO_MONITOR_TOKENS` names a file of tokens. A line of it is `ROLE NAME TOKEN`,
where the role is viewer (may give no order), operator or admin; what begins with `#` is a comment. Only the user of the
DRO may have access to the file, which is read for each order. Every order is a log event, also one that is refused.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from dro.bus.codec import JsonObject
from dro.errors import DroError, ResourceError
from supervisor.admin.client import Client, CommandError
from supervisor.admin.status import OperationResult
from supervisor.monitor.answers.models import MAX_TEXT, PROBLEMS, ApiError, Problem
from supervisor.monitor.api import PREFIX

TOKENS_VARIABLE: Final = "DRO_MONITOR_TOKENS"
VIEWER, OPERATOR, ADMIN = "viewer", "operator", "admin"
ROLES: Final = (VIEWER, OPERATOR, ADMIN)
"""Each may do what those before it may."""
MIN_TOKEN: Final = 16  # characters
MAX_FILE: Final = 64 << 10  # bytes
ORDER_LIMIT_S: Final = 25.0

Log = Callable[[dict[str, str]], object]
_OPEN: Final = HTTPBearer(auto_error=False, description="a token of the file that DRO_MONITOR_TOKENS names")
Operation = Literal["restart", "pause", "resume", "drain"]


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """Who has a token."""

    name: str
    role: str
    token: str

    def may(self, role: str) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)


@dataclass(frozen=True, slots=True)
class Giver:
    """Who sends a request: the address and the token as they came."""

    address: str
    token: bytes


def _giver(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_OPEN)]) -> Giver:
    address = request.client.host if request.client is not None else ""
    return Giver(address, given.credentials.encode("latin-1") if given is not None else b"")


By = Annotated[Giver, Depends(_giver)]


class Orders:
    """Checks who gives an order, carries it out over the admin socket, and logs it."""

    def __init__(self, run_dir: Path, file: str, log: Log) -> None:
        """`file`: of tokens; empty: nobody may. `log` gets order, who, address and result of each order."""
        self._run_dir = run_dir
        self._file = file
        self._log = log

    def give(self, giver: Giver, role: str, order: str, name: str = "", *, clean: bool = False) -> JsonObject:
        """Give an order of the admin socket, of one portal or of all, for a holder of that role. Raises: ApiError."""
        shown = f"{order} {name[:MAX_TEXT]}{' --clean' if clean else ''}".strip()
        event = {"order": shown, "who": "", "address": giver.address, "result": "done"}
        try:
            holder = self._holder(giver.token)
            event["who"] = holder.name
            if not holder.may(role):
                raise ApiError(403, f"{holder.name} is {holder.role} and may not do this", f"it needs the role {role}")
            return asked(self._run_dir, order, ({"name": name} if name else {}) | ({"clean": True} if clean else {}))
        except ApiError as e:
            event["result"] = e.problem.what
            raise
        finally:
            self._log(event)

    def _holder(self, token: bytes) -> TokenHolder:
        """Find the holder of a token. Raises: ApiError."""
        if not self._file:
            raise ApiError(403, "orders over HTTP are off", f"name a file of tokens in {TOKENS_VARIABLE}")
        if not token:
            raise _refused()
        try:
            holders = read_tokens(Path(self._file))
        except ResourceError as e:
            raise ApiError(503, f"no token can be checked: {e.what}", e.remedy) from e
        found = [holder for holder in holders if hmac.compare_digest(holder.token.encode(), token)]
        if not found:
            raise _refused()
        return found[0]


def asked(run_dir: Path, order: str, arguments: JsonObject) -> JsonObject:
    """Give an order over a connection of its own, as it may take long. Raises: ApiError."""
    try:
        with Client(run_dir) as client:
            return client.request(order, within_s=ORDER_LIMIT_S, **arguments)
    except CommandError as e:
        raise ApiError(422, str(e)) from e
    except DroError as e:
        raise ApiError(503, str(e)) from e


def _refused() -> ApiError:
    return ApiError(401, "no valid token", "send Authorization: Bearer and one of the file of tokens")


def read_tokens(path: Path) -> list[TokenHolder]:
    """Read a file of tokens. Raises: ResourceError that names line and remedy."""
    try:
        # a FIFO without a writer would be waited for
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ResourceError(f"{path} is no file", remedy="name a file of tokens")
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise ResourceError(f"others have access to {path}", remedy=f"chmod 600 {path}")
            data = file.read(MAX_FILE + 1)
    except OSError as e:
        raise ResourceError(f"cannot read {path}: {e.strerror}", remedy="make it readable for the DRO's user") from e
    if len(data) > MAX_FILE:
        raise ResourceError(f"{path} is too large", remedy=f"at most {MAX_FILE} bytes")
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.split()
        if len(parts) != 3 or parts[0] not in ROLES or len(parts[2]) < MIN_TOKEN:
            raise ResourceError(
                f"{path}:{number}: not a role, a name and a token",
                remedy=f"write a role ({', '.join(ROLES)}), a name, and a token of {MIN_TOKEN} characters or more",
            )
        found.append(TokenHolder(parts[1], parts[0], parts[2]))
    return found


def add_orders(app: FastAPI, orders: Orders) -> None:
    """Let `app` take them."""
    refused: dict[int | str, dict[str, Any]] = {
        401: {"model": Problem, "description": "no valid token"},
        403: {"model": Problem, "description": "orders are off, or the role of the token is not enough"},
    }
    router = APIRouter(prefix=PREFIX, responses=PROBLEMS | refused)

    @router.post("/portals/{name}/{operation}")
    def operate(name: str, operation: Operation, giver: By, clean: bool = False) -> OperationResult:
        """Restart, pause, resume or drain a portal; for operators. `clean`: of a restart, with new sessions."""
        result = orders.give(giver, OPERATOR, f"portal {operation}", name, clean=clean)
        return OperationResult(**result)

    @router.post("/recalculation", status_code=204, response_model=None)
    def recalculate(giver: By) -> None:
        """Calculate routes anew; for operators."""
        orders.give(giver, OPERATOR, "recalculate")

    @router.post("/reload", status_code=200)
    def reload(giver: By) -> JsonObject:
        """Read the configuration file again and apply it; for admins."""
        return orders.give(giver, ADMIN, "reload")

    app.include_router(router)
