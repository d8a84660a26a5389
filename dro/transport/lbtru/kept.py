"""The clients of an LBT-RU session that outlives its process, each in a row of its own."""

from __future__ import annotations

from itertools import count
from typing import Final

from dro.kept.rows import KeptRows
from dro.proto.lbtru.clients import ClientAddress
from dro.transport.sockets import ip_number, ip_text

_ROW: Final = b"lbtru-client"
_IS_NOTED: Final = 1


class KeptClients:
    """Notes those of one session. `former`: those of the process before."""

    def __init__(self, rows: KeptRows, transport_index: int) -> None:
        self._rows = rows
        self._index = transport_index
        self._places: dict[ClientAddress, int] = {}
        self._free: list[int] = []
        self._end = 0
        self.former: list[ClientAddress] = []
        for place in count():
            name = self._name(place)
            if (found := rows.former(_ROW, name)) is None:
                break
            self._end = place + 1
            if found.d == _IS_NOTED:
                client = ip_text(found.a), found.b
                self.former.append(client)
                self._places[client] = place
                rows.row(_ROW, name)
            else:
                self._free.append(place)

    def note(self, client: ClientAddress, *, is_there: bool) -> None:
        """Note that a client is there, or is not any more."""
        place = self._places.get(client)
        if is_there and place is None:
            place = self._free.pop() if self._free else self._end
            if (row := self._rows.row(_ROW, self._name(place))) is None:
                return  # without memory it connects anew after a kill, when its timeout is over
            self._end = max(self._end, place + 1)
            self._places[client] = place
            row.write(ip_number(client[0]), client[1], 0, _IS_NOTED)
        elif not is_there and place is not None:
            del self._places[client]
            self._free.append(place)
            if (row := self._rows.row(_ROW, self._name(place))) is not None:
                row.write(0)

    def forget(self) -> None:
        """Keep nothing any more."""
        for place in range(self._end):
            self._rows.free(_ROW, self._name(place))
        self._places.clear()
        self._free.clear()
        self._end = 0

    def _name(self, place: int) -> bytes:
        return b"%d %d" % (self._index, place)
