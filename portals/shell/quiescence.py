"""When the sessions of proxy sources have come to rest, for a drain."""

from __future__ import annotations

from collections.abc import Iterable

from portals.datapath.outgoing import ProxySource


class SenderQuiescence:
    """Sessions of proxy sources after which nothing more has to be waited for, see `portals.decisions.drain`."""

    def __init__(self, sources: Iterable[ProxySource], linger_ns: int, now_ns: int, *, is_all: bool) -> None:
        """`is_all`: nothing new goes over these sessions, so kernel buffers will run empty as well."""
        senders = dict.fromkeys(source.transport for source in sources)
        self._settling = [sender.settling(now_ns, linger_ns, is_last=is_all) for sender in senders]
        self.is_read_on = any(sender.is_read_on for sender in senders)

    def is_over(self, now_ns: int) -> bool:
        return all(has_settled(now_ns) for has_settled in self._settling)


def fed_by(worker: int | None, proxies: Iterable[ProxySource]) -> list[ProxySource]:
    """List the proxy sources that the sibling feeds; all for None."""
    return [p for p in proxies if worker is None or (p.feeder is not None and p.feeder[0] == worker)]
