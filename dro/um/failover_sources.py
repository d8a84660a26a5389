"""Sources for hot failover, for asyncio and for threads: ordinary sources whose messages have a number.

Several of them, on other hosts or networks, send the same messages under the same numbers; made by `hf_source` of a
context. Source: client library notes, section 11.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, Self, TypeVar

from dro.errors import DroError
from dro.um.message.events import SqnRange
from dro.um.message.failover import FailoverNumbering
from dro.um.message.properties import ComposedMessage, Properties, batch_marks

BITS: Final = 32


class PlainSource(Protocol):
    """Names what sources of both interfaces have."""

    @property
    def topic(self) -> str: ...

    @property
    def source_string(self) -> str: ...

    @property
    def otid(self) -> bytes: ...

    @property
    def clients(self) -> frozenset[str]: ...


class PlainBlockingSource(PlainSource, Protocol):
    """A source for threads."""

    def send_composed(
        self, message: ComposedMessage, flush: bool, block: bool, timeout: float | None, marks: int
    ) -> SqnRange: ...

    def flush(self) -> None: ...

    def wait_receivers(self, count: int = 1, timeout: float | None = None) -> None: ...

    def close(self, *, final: bool | None = None, wait: bool = True) -> None: ...


class PlainAsyncSource(PlainSource, Protocol):
    """A source for asyncio."""

    async def send_composed(self, message: ComposedMessage, flush: bool, block: bool, marks: int) -> SqnRange: ...

    async def flush(self) -> None: ...

    async def wait_receivers(self, count: int = 1) -> None: ...

    async def close(self, *, final: bool | None = None, wait: bool = True) -> None: ...


S = TypeVar("S", bound=PlainSource)


class _NumberedSource(Generic[S]):
    """Holds a source and its numbering, for both interfaces."""

    def __init__(self, source: S) -> None:
        self._source = source
        self._numbering = FailoverNumbering()

    @property
    def topic(self) -> str:
        return self._source.topic

    @property
    def source_string(self) -> str:
        return self._source.source_string

    @property
    def otid(self) -> bytes:
        return self._source.otid

    @property
    def clients(self) -> frozenset[str]:
        """Connected receivers of the session; LBT-RM knows none."""
        return self._source.clients


class BlockingHFSource(_NumberedSource[PlainBlockingSource]):
    """One source. Made by `BlockingContext.hf_source`."""

    def send(
        self,
        data: bytes,
        hf_sqn: int,
        *,
        bits: int = BITS,
        optional: bool = False,
        flush: bool = True,
        block: bool = True,
        timeout: float | None = None,
        properties: Properties | None = None,
        channel: int | None = None,
        start_batch: bool = False,
        end_batch: bool = False,
    ) -> SqnRange:
        """Send one message under a number of 32 or 64 bits. `optional`: receivers may leave it out.

        The rest as `BlockingSource.send`.
        """
        made = self._numbering.compose(data, hf_sqn, bits, is_optional=optional, properties=properties, channel=channel)
        return self._source.send_composed(made, flush, block, timeout, batch_marks(start_batch, end_batch))

    def reset(self, *, block: bool = True, timeout: float | None = None) -> SqnRange:
        """Begin anew with any number; receivers get an `HFReset`. Raises: as `send`."""
        try:
            return self._source.send_composed(self._numbering.reset(), True, block, timeout, 0)
        except (DroError, TimeoutError):
            self._numbering.take_back()
            raise

    def flush(self) -> None:
        """Send what waits for more messages."""
        self._source.flush()

    def wait_receivers(self, count: int = 1, timeout: float | None = None) -> None:
        """Wait until so many receivers are connected; not for LBT-RM. Raises: TimeoutError."""
        self._source.wait_receivers(count, timeout)

    def close(self, *, final: bool | None = None, wait: bool = True) -> None:
        """Stop being a source; see `BlockingSource.close`."""
        self._source.close(final=final, wait=wait)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HFSource(_NumberedSource[PlainAsyncSource]):
    """One source. Made by `Context.hf_source`."""

    async def send(
        self,
        data: bytes,
        hf_sqn: int,
        *,
        bits: int = BITS,
        optional: bool = False,
        flush: bool = True,
        block: bool = True,
        properties: Properties | None = None,
        channel: int | None = None,
        start_batch: bool = False,
        end_batch: bool = False,
    ) -> SqnRange:
        """Send one message under a number of 32 or 64 bits. `optional`: receivers may leave it out.

        The rest as `Source.send`.
        """
        made = self._numbering.compose(data, hf_sqn, bits, is_optional=optional, properties=properties, channel=channel)
        return await self._source.send_composed(made, flush, block, batch_marks(start_batch, end_batch))

    async def reset(self, *, block: bool = True) -> SqnRange:
        """Begin anew with any number; receivers get an `HFReset`. Raises: as `send`."""
        try:
            return await self._source.send_composed(self._numbering.reset(), True, block, 0)
        except DroError:
            self._numbering.take_back()
            raise

    async def flush(self) -> None:
        """Send what waits for more messages."""
        await self._source.flush()

    async def wait_receivers(self, count: int = 1) -> None:
        """Wait until so many receivers are connected; not for LBT-RM."""
        await self._source.wait_receivers(count)

    async def close(self, *, final: bool | None = None, wait: bool = True) -> None:
        """Stop being a source; see `Source.close`."""
        await self._source.close(final=final, wait=wait)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
