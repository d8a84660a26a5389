"""Requests and responses between contexts of one TRD, on real sockets and stepped time."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from weakref import ref

import pytest

from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.proto.unicast.messages import MESSAGE_MAX_BYTES, NotTaken
from dro.um.message.context import MessageContext
from dro.um.message.events import FLAG_IMMEDIATE, FLAG_TOPICLESS, Data, NoRoute, RequestMsg, ResponseMsg, UsageError
from dro.um.message.requests import OpenRequest
from dro.um.message.unicast import parse_target, target_text
from dro.wire.lbmc.headers import ContextAddress
from tests.fakes.um_contexts import Stepper, private_config
from tests.fakes.worker import logged
from tests.rigs.freed import collector_off
from tests.um.message.test_context import opened

LARGE = random.Random(7).randbytes(300_000)


class Party:
    """Two contexts; `asked` has what came to the second one, `told` what the first one was told."""

    def __init__(self, asker: MessageContext, answerer: MessageContext, stepper: Stepper) -> None:
        self.asker, self.answerer, self.stepper = asker, answerer, stepper
        self.asked: list[RequestMsg] = []
        self.told: list[bytes] = []
        self.failures: list[ResourceError] = []
        answerer.on_immediate = self.on_immediate
        self.target = answerer.request_target

    def on_immediate(self, message: Data) -> None:
        assert isinstance(message, RequestMsg)
        assert message.topic == ""
        assert message.flags == FLAG_IMMEDIATE | FLAG_TOPICLESS
        self.asked.append(message)

    def on_response(self, response: ResponseMsg) -> None:
        assert response.source == self.target
        self.told.append(response.data)

    def ask(self, data: bytes = b"ask", target: str = "") -> OpenRequest:
        return self.asker.uim_request(target or self.target, data, self.on_response, self.failures.append)

    def until_asked(self, count: int = 1) -> RequestMsg:
        self.stepper.until(lambda: len(self.asked) >= count)
        return self.asked[-1]

    def until_failed(self) -> str:
        self.stepper.until(lambda: bool(self.failures))
        return str(self.failures[-1])


@pytest.fixture
def party(stepper: Stepper) -> Iterator[Party]:
    config = private_config("tcp")
    with opened(config, stepper) as asker, opened(config, stepper) as answerer:
        yield Party(asker, answerer, stepper)


@pytest.mark.parametrize("data", [b"", b"data", LARGE], ids=["empty", "small", "large"])
def test_a_request_is_answered_as_often_as_the_application_wants(party: Party, data: bytes) -> None:
    party.ask(data)
    request = party.until_asked()
    assert request.data == data
    assert request.source == party.asker.request_target
    for answer in (data, b"second"):
        request.response.send(answer)
        party.stepper.until(lambda answer=answer: party.told[-1:] == [answer])  # type: ignore[misc]
    assert party.told == [data, b"second"]
    assert not party.failures


def test_responses_go_to_the_request_that_they_answer(party: Party) -> None:
    for data in (b"1", b"2", b"3"):
        party.ask(data)
    party.until_asked(3)
    for request in reversed(party.asked):
        request.response.send(request.data)
    party.stepper.until(lambda: len(party.told) == 3)
    assert party.told == [b"3", b"2", b"1"]


def test_after_the_end_of_a_request_responses_are_dropped(party: Party) -> None:
    handle = party.ask()
    request = party.until_asked()
    handle.close()
    handle.close()
    assert not handle.is_open
    request.response.send(b"late")
    party.stepper.until(lambda: party.asker.unicast.dropped[NotTaken.NOBODY] == 1)
    assert party.told == []


def test_nobody_takes_requests_without_a_callback(party: Party) -> None:
    party.answerer.on_immediate = None
    party.ask()
    party.stepper.until(lambda: party.answerer.unicast.dropped[NotTaken.NOBODY] == 1)


def test_callbacks_may_fail(party: Party, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    party.answerer.on_immediate = fail
    party.ask()
    party.stepper.until(lambda: any(event == LogEvent.REQUEST_CALLBACK for _, event, _ in logged(caplog)))
    party.answerer.on_immediate = party.on_immediate
    party.ask()
    party.until_asked().response.send(b"well")
    party.stepper.until(lambda: party.told == [b"well"])


def test_strange_bytes_are_dropped_and_counted(party: Party) -> None:
    address = parse_target(party.target)
    with socket.create_connection(("127.0.0.1", address.port)) as stranger:
        stranger.sendall(bytes.fromhex("0000000d000000070000000041"))
        party.stepper.until(lambda: party.answerer.unicast.dropped[NotTaken.NOBODY] == 1)
    party.ask()
    party.until_asked()


# what fails


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_who_is_not_there_is_named(party: Party) -> None:
    target = f"TCP:127.0.0.1:{closed_port()}"
    party.ask(target=target)
    assert party.until_failed().startswith(f"request to {target}: the connection was refused")
    assert len(party.asker.requests) == 0


def test_a_domain_without_a_dro_is_named(party: Party) -> None:
    target = "TCP:77:127.0.0.1:14391"
    party.ask(target=target)
    assert party.until_failed().startswith(f"request to {target}: no DRO offers domain 77")
    assert isinstance(party.failures[0], NoRoute)


def test_a_response_that_cannot_be_sent_is_logged(party: Party, caplog: pytest.LogCaptureFixture) -> None:
    party.ask()
    request = party.until_asked()
    port = parse_target(party.asker.request_target).port
    party.asker.close()
    request.response.send(b"x")
    found: list[object] = []

    def is_logged() -> bool:
        found.extend(fields["target"] for _, event, fields in logged(caplog) if event == LogEvent.RESPONSE_NOT_SENT)
        return bool(found)

    party.stepper.until(is_logged)
    assert found == [f"TCP:127.0.0.1:{port}"]


def test_a_context_without_a_request_port_cannot_ask(stepper: Stepper) -> None:
    with opened(private_config("tcp", context__request_tcp_bind_request_port=0), stepper) as context:
        assert context.request_target == ""
        with pytest.raises(ResourceError, match=r"no request port.*set request_tcp_bind_request_port to 1"):
            context.uim_request("TCP:127.0.0.1:14391", b"", print)


def test_wrong_calls_are_refused(party: Party) -> None:
    with pytest.raises(UsageError, match="at most"):
        party.ask(bytes(MESSAGE_MAX_BYTES + 1))
    party.ask()
    request = party.until_asked()
    party.answerer.close()
    with pytest.raises(UsageError, match="closed"):
        request.response.send(b"x")
    party.asker.close()
    assert party.until_failed().endswith("the context is closed")
    with pytest.raises(UsageError, match="closed"):
        party.ask()


def test_there_are_not_endless_open_requests(party: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.um.message.requests.REQUESTS_MAX", 3)
    first, *_ = [party.ask() for _ in range(3)]
    with pytest.raises(UsageError, match="close those that are over"):
        party.ask()
    first.close()
    party.ask()


@pytest.mark.parametrize("target", ["TCP:10.0.0.1:14391", "TCP:3:10.0.0.1:14391"])
def test_targets_are_read_as_they_are_written(target: str) -> None:
    assert target_text(parse_target(target)) == target


@pytest.mark.parametrize(
    "target",
    [
        "", "TCP", "TCP:10.0.0.1", "UDP:10.0.0.1:1", "TCP:10.0.0.1:0", "TCP:10.0.0.1:65536", "TCP:0.0.0.0:1",
        "TCP:10.1:14391", "TCP:x:10.0.0.1:1", "TCP:4294967296:10.0.0.1:1", "TCP:1:2:10.0.0.1:1", "TCP:10.0.0.1:-1",
        "TCP:host:1", "TCP::10.0.0.1:1", "TCP:2:239.1.1.1:15",
    ],
)  # fmt: skip
def test_what_is_no_target_is_named(target: str) -> None:
    with pytest.raises(UsageError, match=r"is not TCP:ip:port or TCP:domain:ip:port"):
        parse_target(target)


def test_domain_0_is_the_own_one() -> None:
    assert parse_target("TCP:0:10.0.0.1:7") == ContextAddress(0, 0x0A000001, 7)


class Answers(list[ResponseMsg]):
    """What a request refers to; can be referred to weakly."""


def ask_and_end(party: Party) -> ref[Answers]:
    """One request that is answered, and one that waits for a DRO; both are closed."""
    answers = Answers()
    answered = party.asker.uim_request(party.target, LARGE, answers.append)
    waiting = party.asker.uim_request("TCP:77:127.0.0.1:1", LARGE, answers.append)
    party.until_asked().response.send(LARGE)
    party.stepper.until(lambda: bool(answers))
    party.asked.clear()
    answered.close()
    waiting.close()
    return ref(answers)


def test_what_is_over_is_freed_by_reference_counting(party: Party) -> None:
    with collector_off():
        assert ask_and_end(party)() is None
    assert len(party.asker.requests) == 0
