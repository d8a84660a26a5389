"""Files that want to do harm: they are refused with ConfigError, quickly, without touching files or the network."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.config.dro_xml.load import load_dro
from dro.config.reading.problems import MAX_ERRORS, ConfigErrors
from dro.config.reading.xml_file import MAX_FILE_BYTES
from dro.errors import ConfigError
from tests.builders.dro_documents import mutated
from tests.builders.dro_file import parse_dro
from tests.fakes.lookup import FakeLookup
from tests.rigs.circumstances import limited
from tests.rigs.loaded import ROOT, run

MANY = int(os.environ.get("DRO_EXAMPLES", "300"))  # the long profile: 50000
EXAMPLE = (Path(__file__).parents[2] / "golden" / "examples" / "direct-link" / "dro-g1.xml").read_bytes()
BODY = "<portals><endpoint><name>{0}</name><domain-id>1</domain-id></endpoint></portals>"


def gateway(doctype: str, name: str) -> bytes:
    return f'<?xml version="1.0"?>{doctype}<tnw-gateway version="1.0">{BODY.format(name)}</tnw-gateway>'.encode()


def ignore(_: str) -> None:
    """Warnings do not matter here."""


def bomb(levels: int) -> str:
    lines = ['<!ENTITY a0 "ha">']
    lines += [f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, levels)]
    return f"<!DOCTYPE tnw-gateway [{''.join(lines)}]>"


@pytest.mark.parametrize(
    "raw",
    [
        gateway(bomb(12), "&a11;"),
        gateway(bomb(12), "x").replace(b'version="1.0">', b'version="&a11;">'),
        gateway('<!DOCTYPE tnw-gateway [<!ENTITY e SYSTEM "file:///etc/passwd">]>', "&e;"),
        gateway('<!DOCTYPE tnw-gateway [<!ENTITY e SYSTEM "http://192.0.2.1/x">]>', "&e;"),
        gateway('<!DOCTYPE tnw-gateway [<!ENTITY % p SYSTEM "http://192.0.2.1/x.dtd"> %p;]>', "&e;"),
        gateway('<!DOCTYPE tnw-gateway [<!ENTITY e "x">]>', "plain"),
        gateway('<!DOCTYPE tnw-gateway SYSTEM "http://192.0.2.1/x.dtd">', "&undefined;"),
        gateway("", "<a>" * 5000 + "</a>" * 5000),
        b"",
        b"\0" * 100,
        b"<",
        b"\xff\xfe<\x00",
        b"<?xml version='1.0' encoding='no-such-code'?><tnw-gateway/>",
    ],
    ids=lambda raw: re.sub(rb"[^ -~]", b".", raw[22:60]).decode(),
)
def test_hostile_documents_are_refused_quickly(raw: bytes) -> None:
    start = time.process_time()
    with pytest.raises(ConfigError):
        parse_dro(raw, "dro.xml", warn=ignore)
    assert time.process_time() - start < 5


def test_an_external_entity_never_reaches_a_value(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("top-secret")
    raw = gateway(f'<!DOCTYPE tnw-gateway [<!ENTITY e SYSTEM "file://{secret}">]>', "&e;")
    with pytest.raises(ConfigError) as caught:
        parse_dro(raw, "dro.xml", warn=ignore)
    assert "top-secret" not in str(caught.value)
    assert "entities" in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "remedy"),
    [
        (gateway("", "<a>" * 300 + "</a>" * 300), "put fewer elements into each other"),
        (gateway(bomb(12), "x").replace(b'version="1.0">', b'version="&a11;">'), "write the text itself"),
    ],
)
def test_remedies_are_for_who_wrote_the_file(raw: bytes, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_dro(raw, "dro.xml", warn=ignore)
    assert caught.value.remedy.startswith(remedy)
    assert "xml" not in caught.value.what.lower().removeprefix("not well-formed xml")


def test_a_plain_doctype_is_fine_and_nothing_is_fetched() -> None:
    raw = gateway('<!DOCTYPE tnw-gateway SYSTEM "http://192.0.2.1/dro.dtd">', "A")
    assert parse_dro(raw, "dro.xml", warn=ignore).portals[0].name == "A"


def test_a_huge_file_is_refused_without_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "dro.xml"
    with path.open("wb") as f:
        f.truncate(2**40)  # sparse
    with pytest.raises(ConfigError, match=f"larger than {MAX_FILE_BYTES} bytes"):
        load_dro(str(path), warn=ignore)


def test_a_file_full_of_mistakes_has_a_bounded_report() -> None:
    raw = gateway("", "A").replace(b"<portals>", b"<portals>" + b"".join(b"<x%d/>\n" % n for n in range(20_000)))
    with pytest.raises(ConfigErrors) as caught:
        parse_dro(raw, "dro.xml", warn=ignore)
    assert len(caught.value.errors) == MAX_ERRORS


def test_long_values_are_cut_in_messages() -> None:
    raw = gateway("", "A").replace(b"<domain-id>1", b"<domain-id x='" + b"y" * 100_000 + b"'>" + b"9" * 100_000)
    with pytest.raises(ConfigErrors) as caught:
        parse_dro(raw, "dro.xml", warn=ignore)
    assert all(len(str(e)) < 300 for e in caught.value.errors)


def largest(piece: bytes) -> bytes:
    """A file of the size that is just taken, full of one thing."""
    frame = gateway("", "A").replace(b"<portals>", b"<portals>%s")
    return frame % (piece * ((MAX_FILE_BYTES - len(frame)) // len(piece)))


LARGE = {
    "bomb": gateway(bomb(12), "&a11;"),
    "elements": largest(b"<x/>"),
    "attributes": gateway("", "A").replace(
        b"<portals", b"<portals " + b" ".join(b"a%d=''" % n for n in range(200_000))
    ),
    "depth": gateway("", "<a>" * 250 + "</a>" * 250),
    "comments": largest(b"<!---->"),
    "portals": largest(b"<endpoint><name>A</name><domain-id>1</domain-id></endpoint>"),
    "text": largest(b"text "),
    "entries": largest(
        b"<endpoint><acl><inbound><ace match='accept'><topic>A</topic></ace></inbound></acl></endpoint>"
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_memory_and_time_are_bounded(name: str, tmp_path: Path) -> None:
    """In a process of its own, which the kernel would end at 2 GiB; the time is that of the processor."""
    path = tmp_path / "m.xml"
    path.write_bytes(LARGE[name])
    argv = [sys.executable, "-m", "tests.rigs.parse_cost", str(path)]
    ended = run(argv, cwd=ROOT, timeout=120, preexec_fn=limited("AS", 2 << 30))
    assert ended.returncode == 0, ended.stderr
    kibibytes, seconds = map(float, ended.stdout.split())
    print(f"{name}: {len(LARGE[name])} bytes, {kibibytes / 1024:.0f} MiB, {seconds:.2f} s")
    assert kibibytes < 1024 * 1024
    assert seconds < 30


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (LARGE["attributes"], r"m\.xml:1: <portals> has \d+ attributes, at most 1000 are read; "),
        (LARGE["portals"], r"m\.xml:1: <portals>: \d+ portals, at most 1000 are read; spread them over several DROs"),
    ],
)
def test_what_goes_beyond_all_bounds_is_told_with_the_bound(raw: bytes, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_dro(raw, "m.xml", warn=ignore)


TOKENS = sorted({t for t in re.findall(rb"<[^>]*>|[^<>\s]+|\s+", EXAMPLE) if t.strip()})


@settings(max_examples=MANY)
@given(mutated(EXAMPLE))
def test_no_edit_of_a_file_leads_to_anything_but_config_errors(raw: bytes) -> None:
    try:
        config = parse_dro(raw, "dro.xml", warn=ignore, lookup=FakeLookup())
    except ConfigError:
        return
    assert config.portals or config.peers
    assert all(1 <= p.domain_id < 2**32 for p in config.portals)
    assert len({p.name for p in config.portals}) == len(config.portals)


@settings(max_examples=MANY)
@given(st.lists(st.sampled_from(TOKENS), max_size=60))
def test_no_sequence_of_tokens_leads_to_anything_but_config_errors(tokens: list[bytes]) -> None:
    raw = b'<tnw-gateway version="1.0">' + b" ".join(tokens) + b"</tnw-gateway>"
    try:
        config = parse_dro(raw, "dro.xml", warn=ignore, lookup=FakeLookup())
    except ConfigError:
        return
    assert config.portals or config.peers
