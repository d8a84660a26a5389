"""Prints packets of statistics as they come, and says what is wrong with those that cannot be read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from dro.errors import DecodeError, LocalProtocolError
from dro.lbmmon.binary import decode_binary
from dro.lbmmon.packet import decode
from dro.lbmmon.records import DroStats, Unread
from dro.standard_streams import say
from dro.tools.lbm.ending import EndRequest
from dro.tools.lbmmon.showing import json_of, text_of
from dro.tools.text import shown


class Printer:
    """Used by one thread at a time. Errors of the output are raised."""

    def __init__(self, prog: str, stop: EndRequest, *, is_json: bool, packets: int | None) -> None:
        """`packets`: after so many it requests the end."""
        self._prog = prog
        self._stop = stop
        self._show = json_of if is_json else text_of
        self._packets = packets
        self.only = 0
        """The module of the format that packets must have; 0: any."""
        self.separator = ""
        self.is_dro_alone = False
        """Statistics of the UM library are left out."""
        self._received = self._bad = self._lost = 0

    def on_open(self) -> None:
        say(sys.stderr, f"{self._prog}: receiving\n")

    def on_packet(self, packet: bytes, where: str) -> None:
        """Print one packet of `lbmmon`."""
        self._put(where, partial(self._text_of_packet, packet))

    def on_binary(self, message: bytes, where: str) -> None:
        """Print one binary message of a daemon."""
        self._put(where, lambda: self._show(decode_binary(message)))

    def on_lost(self, where: str) -> None:
        self._lost += 1
        say(sys.stderr, f"{self._prog}: {where}: lost\n")

    def _put(self, where: str, make: Callable[[], str]) -> None:
        """Print what is made of a packet, or why it cannot be read; without a text it does not count."""
        if self._packets is not None and self._received >= self._packets:
            return
        try:
            text = make()
        except (DecodeError, LocalProtocolError, ValueError) as e:  # the latter: of what can be read and not be shown
            self._bad += 1
            say(sys.stderr, f"{self._prog}: {where}: {shown(str(e))}\n")
            return
        if text:
            self._received += 1
            sys.stdout.write(text)
            sys.stdout.flush()
            if self._received == self._packets:
                self._stop.request()

    def _text_of_packet(self, packet: bytes) -> str:
        """Make the text of a packet. Raises: DecodeError."""
        made = []
        for record in decode(packet, self.separator, self.only):
            if isinstance(record, Unread):
                raise DecodeError("lbmmon.type", record.what)
            if isinstance(record, DroStats) or not self.is_dro_alone:
                made.append(self._show(record))
        return "".join(made)

    def sum_up(self) -> None:
        """Say how many there were, on standard error."""
        say(sys.stderr, f"{self._prog}: received {self._received} packets, bad {self._bad}, lost {self._lost}\n")
