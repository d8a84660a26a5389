"""The file of umsrs: values, defaults, and every problem with its place; the DTD against what the table takes."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from lxml import etree

from dro.clock import NS_PER_S
from dro.config.reading.dtd import dtd_of
from dro.config.reading.schema import elements
from dro.config.resolvers.umsrs import TABLE, SrsConfig, load_umsrs
from dro.errors import ConfigError
from dro.proto.srs.settings import SrsTimes

WHOLE: Final = """\
<?xml version="1.0" encoding="UTF-8" ?>
<um-srs version="1.0">
  <daemon>
    <log type="file" frequency="hourly" size="10" max-history="10" total-size-cap="9" compression="zip">SRS.log</log>
    <pid-file>SRS.pid</pid-file>
  </daemon>
  <srs>
    <interface>127.0.0.0/8</interface>
    <port>12000</port>
    <state-lifetime>3600</state-lifetime>
    <source-state-lifetime>0</source-state-lifetime>
    <interest-state-lifetime>70</interest-state-lifetime>
    <context-name-state-lifetime>60</context-name-state-lifetime>
    <route-state-lifetime>20</route-state-lifetime>
    <source-leave-backoff>100</source-leave-backoff>
  </srs>
  <daemon-monitor topic="/statistics">
    <publishing-interval>
      <default>2000</default><config-opts>20000</config-opts><internal-config-opts>0</internal-config-opts>
    </publishing-interval>
    <lbm-attributes><option scope="context" name="operational_mode" value="embedded"/></lbm-attributes>
    <monitor-format>pb</monitor-format>
  </daemon-monitor>
</um-srs>
"""


def load(tmp_path: Path, text: str, warnings: list[str] | None = None) -> SrsConfig:
    path = tmp_path / "srs.xml"
    path.write_text(text)
    return load_umsrs(str(path), (warnings if warnings is not None else []).append)


def test_everything_is_read(tmp_path: Path) -> None:
    warnings: list[str] = []
    config = load(tmp_path, WHOLE, warnings)
    assert (config.service.interface, config.service.port) == ("127.0.0.0/8", 12000)
    log = config.daemon.log
    assert (log.type, log.file, log.frequency, log.size_mb) == ("file", "SRS.log", "hourly", 10)
    assert config.daemon.pid_file == "SRS.pid"
    assert config.times == SrsTimes(0, 70 * NS_PER_S, 20 * NS_PER_S, NS_PER_S // 10)
    assert (config.interface_line, config.log_line, config.pid_file_line) == (8, 4, 5)
    assert [re.sub(r".*:(\d+: <[\w-]+).*", r"\1", text) for text in warnings] == [
        "4: <log", "13: <context-name-state-lifetime", "17: <daemon-monitor",
    ]  # fmt: skip


def test_without_a_file_and_in_an_empty_one_the_defaults_hold(tmp_path: Path) -> None:
    path = tmp_path / "srs.xml"
    path.write_text("<um-srs/>")
    for config in (load_umsrs("", pytest.fail), load_umsrs(str(path), pytest.fail)):
        assert (config.service.interface, config.service.port) == ("0.0.0.0", 27000)
        assert (config.daemon.log.type, config.daemon.pid_file) == ("console", "")
        assert config.times == SrsTimes()


def test_one_lifetime_may_stand_for_both(tmp_path: Path) -> None:
    config = load(tmp_path, "<um-srs><srs><state-lifetime>5</state-lifetime></srs></um-srs>")
    assert (config.times.source_state_ns, config.times.interest_state_ns) == (5 * NS_PER_S, 5 * NS_PER_S)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("<port>12000", "<port>0", "9: <port>: 0 is out of range; write 1 to 65535"),
        (
            "<source-leave-backoff>100",
            "<source-leave-backoff>soon",
            "15: <source-leave-backoff>: 'soon' is not",
        ),
        ("<state-lifetime>3600", "<state-lifetime>-1", "10: <state-lifetime>: -1 is out of range"),
        ("<interest-state-lifetime>70", "<interest-state-lifetime>", "12: <interest-state-lifetime>"),
        ("SRS.log", "", "4: <log"),
        ("SRS.pid", "", "5: <pid-file>"),
        ("<daemon-monitor topic", "<daemon-monitor tpic", "17: <daemon-monitor"),
        ('version="1.0">\n', 'version="2">\n', "'2' is not allowed; write one of 1.0"),
        ("<srs>", "<srs><ports>1</ports>", "did you mean port?"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, old: str, new: str, error: str) -> None:
    assert old in WHOLE
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, WHOLE.replace(old, new, 1))
    assert error in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "srs.xml:"))


def test_another_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1: the root element is <lbmrd>, not <um-srs>; is this a file of umsrs\?"):
        load(tmp_path, "<lbmrd/>")


def test_the_dtd_is_valid_and_takes_a_whole_file() -> None:
    dtd = etree.DTD(StringIO(dtd_of(TABLE)))
    root = etree.fromstring(WHOLE.encode())
    assert dtd.validate(root), dtd.error_log
    root.append(etree.Element("daemon"))
    assert not dtd.validate(root)
    assert {str(element.tag) for element in root.iter(etree.Element)} == set(elements(TABLE))
