"""Option strings of the modules that statistics travel by."""

from __future__ import annotations

from pathlib import Path

import pytest

from dro.errors import ConfigError
from dro.log.events import LogEvent
from dro.tools.lbmmon.options import UdpPlace, UmPlace, place_of, separator_of


def um_place(text: str, *files: str) -> UmPlace:
    place = place_of("lbm", text, files)
    assert isinstance(place, UmPlace)
    return place


def test_without_options_the_usual_topic_is_heard_without_a_request_port() -> None:
    place = um_place("")
    assert (place.topic, place.pattern) == ("/29west/statistics", "")
    options = place.config.options
    assert options.get_str("context", "context_name") == "29west_statistics_context"
    assert not options.get_int("context", "request_tcp_bind_request_port")


def test_later_files_win_and_pairs_win_over_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a.cfg", tmp_path / "b.cfg"
    first.write_text("context resolver_multicast_port 1001\ncontext resolver_multicast_ttl 3\n")
    second.write_text("context resolver_multicast_port 1002\ncontext request_tcp_bind_request_port 1\n")
    place = um_place(f"CONFIG={second};Context|resolver_multicast_ttl=4;receiver|ordered_delivery=-1", str(first))
    options = place.config.options
    assert options.get_int("context", "resolver_multicast_port") == 1002
    assert options.get_int("context", "resolver_multicast_ttl") == 4
    assert options.get_int("receiver", "ordered_delivery") == -1
    assert options.get_int("context", "request_tcp_bind_request_port") == 1


def test_topic_and_pattern_run_to_the_next_semicolon() -> None:
    place = um_place("topic=a = b;wctopic=^/29west/.*=$")
    assert (place.topic, place.pattern) == ("a = b", "^/29west/.*=$")


def test_datagrams_have_a_port_an_interface_and_a_group() -> None:
    assert place_of("udp", "", ()) == UdpPlace(2933, "0.0.0.0", "")
    text = "port=4000;interface=127.0.0.1;mcgroup=239.1.2.3"
    assert place_of("udp", text, ()) == UdpPlace(4000, "127.0.0.1", "239.1.2.3")


@pytest.mark.parametrize(
    ("transport", "text", "said"),
    [
        ("lbm", "allow_debug=on", "module options: allow_debug has no effect in a receiver"),
        ("lbm", "source|transport=tcp", "module options: source|transport has no effect in a receiver"),
        ("lbm", "port=1", "module options: 'port' is not known, ignored"),
        ("udp", "address=10.0.0.1", "module options: address has no effect in a receiver"),
        ("udp", "topic=t", "module options: 'topic' is not known, ignored"),
        ("udp", "context|x=t", "module options: 'context|x' is not known, ignored"),
    ],
)
def test_what_does_nothing_is_named(caplog: pytest.LogCaptureFixture, transport: str, text: str, said: str) -> None:
    place_of(transport, text, ())
    assert [r.getMessage() for r in caplog.records if r.msg == LogEvent.CONFIG_WARNING] == [said]


@pytest.mark.parametrize(
    ("transport", "text", "said"),
    [
        ("lbm", "topic", "'topic' is not name=value"),
        ("lbm", "queue|a=b", "'queue' is not a scope of a receiver; write one of context, receiver, wildcard_receiver"),
        ("lbm", "context|no_such_option=1", "no_such_option"),
        ("lbm", "config=/no/such/file", "/no/such/file"),
        ("udp", "port=0", "port '0' is out of range; write 1 to 65535"),
        ("udp", "port=65536", "port '65536' is out of range"),
        ("udp", "port=x", "port 'x' is out of range"),
        ("udp", "mcgroup=10.0.0.1", "mcgroup '10.0.0.1' is not a multicast group"),
        ("udp", "mcgroup=x", "mcgroup 'x' is not a multicast group"),
        ("udp", "interface=203.0.113.77", "203.0.113.77"),
    ],
)
def test_what_cannot_be_used_is_an_error(transport: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as e:
        place_of(transport, text, ())
    assert said in str(e.value)


def test_the_separator_is_one_character_of_csv(caplog: pytest.LogCaptureFixture) -> None:
    assert separator_of("csv", "Separator=|") == "|"
    assert separator_of("", "separator=:") == ":"
    assert separator_of("csv", "") == ""
    assert not caplog.records
    assert separator_of("pb", "separator=|") == ""
    assert [r.getMessage() for r in caplog.records] == ["module options: 'separator' is not known, ignored"]
    with pytest.raises(ConfigError, match="is not one ASCII character"):
        separator_of("csv", "separator=||")
