"""The file of lbmrd: values, defaults, and every problem with its place; the DTD against what the table takes."""

from __future__ import annotations

import re
from io import StringIO
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

import pytest
from lxml import etree

from dro.config.reading.dtd import dtd_of
from dro.config.reading.schema import elements
from dro.config.resolvers.lbmrd import TABLE, load_lbmrd
from dro.errors import ConfigError
from dro.proto.lbmrd.nat import NatRule, Translation

NAT: Final = """\
<?xml version="1.0" encoding="UTF-8" ?>
<lbmrd version="1.0">
  <daemon>
    <activity>500</activity><interface>127.0.0.0/8</interface><port>12000</port><ttl>5</ttl>
    <log type="file" frequency="daily" size="7" max-history="3">/tmp/lbmrd.log</log>
    <resolver_unicast_receiver_socket_buffer>100000</resolver_unicast_receiver_socket_buffer>
    <resolver_unicast_send_socket_buffer>200000</resolver_unicast_send_socket_buffer>
  </daemon>
  <domains>
    <domain name="in"><network>10.1.0.0/16</network><network>10.9.0.1</network></domain>
    <domain name="out"><network>10.2.0.0/16</network></domain>
  </domains>
  <transformations>
    <transform source="in" destination="out">
      <rule><match address="10.1.0.5" port="14371"/><replace address="10.2.0.254" port="*"/></rule>
      <rule><match address="*" port="*"/><replace address="10.2.0.253" port="80"/></rule>
    </transform>
  </transformations>
</lbmrd>
"""


def load(tmp_path: Path, text: str, warnings: list[str] | None = None) -> object:
    path = tmp_path / "lbmrd.xml"
    path.write_text(text)
    return load_lbmrd(str(path), (warnings if warnings is not None else []).append)


def test_everything_is_read(tmp_path: Path) -> None:
    path, warnings = tmp_path / "lbmrd.xml", list[str]()
    path.write_text(NAT)
    config = load_lbmrd(str(path), warnings.append)
    daemon = config.daemon
    assert (daemon.activity_ms, daemon.interface, daemon.port, daemon.ttl_s) == (500, "127.0.0.0/8", 12000, 5)
    assert (daemon.receive_buffer_bytes, daemon.send_buffer_bytes) == (100000, 200000)
    assert (daemon.log.type, daemon.log.file, daemon.log.frequency, daemon.log.size_mb) == (
        "file", "/tmp/lbmrd.log", "daily", 7,
    )  # fmt: skip
    assert config.translation == Translation(
        ((IPv4Network("10.1.0.0/16"), "in"), (IPv4Network("10.9.0.1"), "in"), (IPv4Network("10.2.0.0/16"), "out")),
        {("in", "out"): (NatRule(0x0A010005, 14371, 0x0A0200FE, None), NatRule(None, None, 0x0A0200FD, 80))},
    )
    assert (config.interface_line, config.log_line) == (4, 5)
    assert [re.sub(r".*:(\d+: )", r"\1", text) for text in warnings] == [
        "5: <log>: max-history has no effect: rolled files are kept"
    ]


def test_without_a_file_and_in_an_empty_one_the_defaults_hold(tmp_path: Path) -> None:
    path = tmp_path / "lbmrd.xml"
    path.write_text("<lbmrd/>")
    for config in (load_lbmrd("", pytest.fail), load_lbmrd(str(path), pytest.fail)):
        daemon = config.daemon
        assert (daemon.activity_ms, daemon.interface, daemon.port, daemon.ttl_s) == (60000, "0.0.0.0", 15380, 60)
        assert (daemon.receive_buffer_bytes, daemon.send_buffer_bytes, daemon.log.type) == (0, 0, "console")
        assert config.translation == Translation()


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("<port>12000", "<port>0", "4: <port>: 0 is out of range; write 1 to 65535"),
        ("<ttl>5", "<ttl>soon", "4: <ttl>: 'soon' is not a whole number; write 1 or more (seconds)"),
        ("/tmp/lbmrd.log", "", "5: <log>: no file name; write the file name between the tags"),
        ("<domains>", "<domain>", "12: not well-formed XML"),
        ("10.9.0.1", "10.9.0.1/33", "10: <network>: '10.9.0.1/33' is not a network; write it as in 192.0.2.0/24"),
        ("10.9.0.1", "10.1.2.3/16", "10: <network>: 10.1.0.0/16 is in domain 'in' already; name it once"),
        ("<network>10.2.0.0/16</network>", "", "11: <domain>: <network> is missing; add the networks of the domain"),
        ('name="out"', 'name="in"', "11: <domain>: there is a domain 'in' already; give each domain its own name"),
        ('destination="out"', 'destination="o"', "14: <transform>: there is no domain 'o'; name one of <domains>"),
        ('source="in" ', "", '14: <transform>: attribute source is missing; add source="..."'),
        ('"10.1.0.5"', '"10.1"', "15: <match>: address '10.1' is not an IPv4 address; write it as in 192.0.2.1, or *"),
        ('port="80"', 'port="65536"', "16: <replace>: port '65536' is not a port; write a number from 1 to 65535"),
        ('<replace address="10.2.0.253" port="80"/>', "", "16: <rule>: <replace> is missing; add <replace>"),
        ("<rule>", "<role>", "not well-formed XML"),
        ('version="1.0">\n', 'version="2">\n', "2: <lbmrd version=\"2\">: '2' is not allowed; write one of 1.0"),
        ("<port>12000</port>", "<portt>1</portt>", "did you mean port?"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in NAT
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, NAT.replace(old, new, 1))
    assert error in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "lbmrd.xml:"))


def test_a_transform_without_rules_and_another_root_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="<rule> is missing"):
        load(tmp_path, re.sub(r"(?s)<rule>.*</rule>", "", NAT))
    with pytest.raises(
        ConfigError, match=r"1: the root element is <tnw-gateway>, not <lbmrd>; is this a file of lbmrd\?"
    ):
        load(tmp_path, "<tnw-gateway/>")


def test_the_dtd_is_valid_and_takes_a_whole_file(tmp_path: Path) -> None:
    dtd = etree.DTD(StringIO(dtd_of(TABLE)))
    root = etree.fromstring(NAT.encode())
    assert dtd.validate(root), dtd.error_log
    root.append(etree.Element("daemon"))
    assert not dtd.validate(root)
    assert {str(element.tag) for element in root.iter(etree.Element)} == set(elements(TABLE))
