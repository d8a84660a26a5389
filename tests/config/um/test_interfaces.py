"""Interface values: every written form, and the real host."""

from __future__ import annotations

import socket

import pytest

from dro.config.um.interfaces import ANY, SYSTEM, multicast_interface, resolve_host, resolve_interface
from dro.errors import ConfigError
from tests.fakes.lookup import DOWN, LOOPBACK, WAN, FakeLookup

HOST = FakeLookup()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.10", "192.0.2.10"),
        ("192.0.2.77/32", "192.0.2.77"),
        ("192.0.2.0/24", "192.0.2.10"),  # the first of the two
        ("192.0.2.99/24", "192.0.2.10"),  # host bits are cleared
        ("198.0.0.0/8", "198.51.100.5"),  # n need not be the mask of the interface
        ("east", "192.0.2.10"),
        ("net/30", "198.51.100.5"),
        ('"eth1"', "198.51.100.5"),
        ('"lo"', "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.9.8.7", "127.9.8.7"),  # an exact address inside the loopback prefix
        ("127.9.8.7/32", "127.9.8.7"),
        ("127.0.0.0/8", "127.0.0.1"),
        ("0.0.0.0", ANY),
        ("0.0.0.0/0", ANY),
        (" 192.0.2.10 ", "192.0.2.10"),
    ],
)
def test_written_forms_of_an_interface(text: str, address: str) -> None:
    assert resolve_interface(text, HOST) == address


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("192.0.2.11", "no interface of this host matches '192.0.2.11'; this host has lo 127.0.0.1, eth0 192.0.2.10"),
        ("192.0.2.11/32", "no interface"),
        ("10.0.0.0/8", "no interface"),
        ("192.0.2.0/33", "not 0..32"),
        ("192.0.2.0/", "not 0..32"),
        ("192.0.2.0/-1", "not 0..32"),
        ("192.0.2.0/٣", "not 0..32"),
        ("192.0.2.0.1", "not an IPv4 address"),
        ("300.0.0.1", "not an IPv4 address"),
        ("eth0", 'write it in quotes: "eth0"'),
        ('"eth9"', "this host has lo, eth0, eth1, eth2"),
        ('"eth0', "quotes do not match"),
        ('""', "quotes do not match"),
        ("west", "host name 'west' cannot be resolved"),
        ("", "not an IPv4 address"),
    ],
)
def test_bad_interfaces_are_refused_with_a_remedy(text: str, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_interface(text, HOST)
    assert part in str(caught.value)
    assert caught.value.remedy


def test_any_becomes_the_first_usable_multicast_interface_and_says_when_there_are_several() -> None:
    warnings: list[str] = []
    assert multicast_interface(ANY, HOST, warnings.append) == "192.0.2.10"
    assert len(warnings) == 1
    assert "eth1 (198.51.100.5)" in warnings[0]
    assert multicast_interface(ANY, FakeLookup((LOOPBACK, DOWN, WAN)), warnings.append) == "198.51.100.5"
    assert len(warnings) == 1
    assert multicast_interface("127.0.0.1", HOST, warnings.append) == "127.0.0.1"


def test_without_a_network_multicast_falls_back_to_loopback() -> None:
    assert multicast_interface(ANY, FakeLookup((LOOPBACK,))) == "127.0.0.1"
    assert multicast_interface(ANY, FakeLookup(())) == ANY


def test_the_real_host_lists_its_loopback_device() -> None:
    loopback = [i for i in SYSTEM.interfaces() if i.is_loopback]
    assert [(i.name, i.address, i.prefix_length) for i in loopback][:1] == [("lo", "127.0.0.1", 8)]
    for interface in SYSTEM.interfaces():
        socket.inet_aton(interface.address)
        assert 0 < interface.prefix_length <= 32


@pytest.mark.parametrize("name", ["a" * 64 + ".invalid", ".", "a..b", "ü" * 80])
def test_names_that_the_resolver_chokes_on_are_config_errors(name: str) -> None:
    with pytest.raises(ConfigError):
        resolve_host(name)
