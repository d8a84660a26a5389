"""`<route-authentication>`: what is a key, what is wrong with a file of keys, and that no key shows anywhere."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dro.config.change.difference import differences
from dro.config.change.element_difference import Change
from dro.config.change.reload_class import ReloadClass
from dro.config.dro_xml.key_file import KEYS_MAX
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig, RouteAuthenticationConfig
from dro.config.dro_xml.unsupported import split_limits
from dro.config.reading.problems import ConfigErrors
from dro.config.report.effective import effective_config
from tests.builders.dro_file import endpoint, gateway

HEX = "00112233445566778899aabbccddeeff"
TEXT = "correct-horse-battery"
REMEDY = "write a key as openssl rand -hex 32 prints it"


class Site:
    """A DRO file, and a file of keys beside it."""

    def __init__(self, folder: Path) -> None:
        self.keys, self.dro = folder / "route.keys", folder / "dro.xml"
        self.warnings: list[str] = []

    def write(self, keys: str | bytes, mode: int = 0o600) -> None:
        self.keys.write_bytes(keys.encode() if isinstance(keys, str) else keys)
        self.keys.chmod(mode)

    def load(self, inner: str | None = None, attribute: str = "") -> DroConfig:
        inner = f"<key-file>{self.keys}</key-file>" if inner is None else inner
        given = f"<extensions><route-authentication{attribute}>{inner}</route-authentication></extensions>"
        portals = endpoint("A", 1), endpoint("B", 2, OTHER_CHANNEL)
        self.dro.write_bytes(gateway(*portals, daemon=given))
        self.warnings.clear()
        return load_dro(str(self.dro), warn=self.warnings.append, environ={})

    def read(self, keys: str | bytes) -> tuple[bytes, ...]:
        self.write(keys)
        given = self.load().daemon.route_authentication
        assert given is not None
        return given.keys

    def refusal(self, inner: str | None = None) -> str:
        with pytest.raises(ConfigErrors) as caught:
            self.load(inner)
        [error] = caught.value.errors
        return str(error).replace(str(self.keys), "KEYS").replace(f"{self.dro}:2: ", "", 1)


OTHER_CHANNEL = (
    '<lbm-attributes><option name="resolver_multicast_address" scope="context" value="239.1.1.1"/></lbm-attributes>'
)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_without_the_element_there_is_none(site: Site) -> None:
    site.dro.write_bytes(gateway(endpoint("A", 1)))
    assert load_dro(str(site.dro), warn=site.warnings.append, environ={}).daemon.route_authentication is None


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (HEX, (bytes.fromhex(HEX),)),
        (HEX.upper() + "\n", (bytes.fromhex(HEX),)),
        (TEXT, (TEXT.encode(),)),
        ("schlüssel-der-dros", ("schlüssel-der-dros".encode(),)),
        (f"# new, then old\n\n  {HEX}  # of May\r\n\t{TEXT}\n #\n", (bytes.fromhex(HEX), TEXT.encode())),
        ("a#b#c#d#e#f#g#h#", (b"a#b#c#d#e#f#g#h#",)),
        ("\ufeff" + HEX, (bytes.fromhex(HEX),)),
    ],
    ids=["hex", "upper case", "text", "letters of other languages", "comments", "a sign in a text", "byte order mark"],
)
def test_each_line_is_a_key(site: Site, text: str, keys: tuple[bytes, ...]) -> None:
    assert site.read(text) == keys
    assert site.warnings == []


def test_unsigned_information_is_taken_only_when_asked_for(site: Site) -> None:
    site.write(HEX)
    for attribute, expected in (("", False), (' accept-unsigned="no"', False), (' accept-unsigned="yes"', True)):
        given = site.load(attribute=attribute).daemon.route_authentication
        assert given == RouteAuthenticationConfig(str(site.keys), (bytes.fromhex(HEX),), expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no key"),
        ("# nothing\n\n", "has no key"),
        (HEX[2:], "1: a key of 15 bytes, two hex digits each, it needs 16"),
        (f"{HEX}\n\nsecret\n", "3: a key of 6 bytes, it needs 16"),
        (HEX + "0", "1: an odd number of hex digits"),
        ("a key of several words", "1: a key with a blank, or a character that does not print"),
        ("a-key-with-a\x07in-it", "1: a key with a blank, or a character that does not print"),
        (b"\xff" * 16, "is no text in UTF-8"),
    ],
    ids=["empty", "comments only", "short", "third line", "odd", "blanks", "bell", "binary"],
)
def test_what_is_no_key_is_an_error_with_file_line_and_remedy(site: Site, text: str | bytes, message: str) -> None:
    site.write(text)
    place = "KEYS:" if message[0].isdigit() else "KEYS: "
    assert site.refusal() == f"<key-file>: {place}{message}; {REMEDY}"


def test_a_file_that_cannot_be_opened_can_be_looked_at_and_not_run(site: Site) -> None:
    remedy = "check the name, and that the user of the DRO may read it"
    for why in ("No such file or directory", "Is a directory"):
        config = site.load()
        assert f"<key-file>{site.keys}</key-file>" in effective_config(config)
        [error], _ = split_limits(config)
        assert str(error) == f"{site.dro}:2: <key-file>: {site.keys}: cannot read the keys: {why}; {remedy}"
        site.keys.mkdir(exist_ok=True)
    site.keys.rmdir()
    site.write(HEX)
    assert split_limits(site.load())[0] == []


def test_a_file_without_end_is_an_error(site: Site) -> None:
    assert "<key-file>: /dev/zero: larger than 65536 bytes" in site.refusal("<key-file>/dev/zero</key-file>")


def test_keys_are_fetched_from_no_network(site: Site) -> None:
    expected = "<key-file>: http://h/keys: keys are read from a file of this host only; name a file"
    assert site.refusal("<key-file>http://h/keys</key-file>") == expected


def test_more_keys_than_anybody_needs_are_an_error(site: Site) -> None:
    assert len(site.read("\n".join(f"{TEXT}{n}" for n in range(KEYS_MAX)))) == KEYS_MAX
    site.write("\n".join(f"{TEXT}{n}" for n in range(KEYS_MAX + 1)))
    assert site.refusal() == "<key-file>: KEYS: 9 keys, at most 8 are tried; remove the old ones"


@pytest.mark.parametrize(("inner", "message"), [("", "<key-file> is missing"), ("<key-file/>", "is empty")])
def test_the_name_of_the_file_is_needed(site: Site, inner: str, message: str) -> None:
    assert message in site.refusal(inner)


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o604, True), (0o644, True)])
def test_a_file_that_everybody_can_read_is_warned_about(site: Site, mode: int, warns: bool) -> None:
    site.write(HEX, mode)
    site.load()
    told = f"<key-file>: {site.keys}: every user of this host can read the keys; chmod o-rwx keeps them from others"
    assert site.warnings == ([f"{site.dro}:2: {told}"] if warns else [])


def test_a_relative_name_is_looked_for_beside_the_dro_file_too(site: Site) -> None:
    site.write(HEX)
    given = site.load("<key-file>route.keys</key-file>").daemon.route_authentication
    assert given is not None
    assert given.key_file == str(site.keys)


def test_other_keys_in_the_file_are_a_change_and_are_not_shown(site: Site) -> None:
    site.write(f"{HEX}\n")
    old = site.load()
    site.write(f"# {HEX}\n{HEX}   # again\n")
    assert differences(old, site.load()) == ()
    site.write(f"{TEXT}\n{HEX}\n")
    new = site.load()
    changes = differences(old, new)
    assert changes == (
        Change("daemon/extensions", "", "(not shown)", "(not shown)", ReloadClass.LIVE, *[f"{site.dro}:2"] * 2),
    )


def test_no_key_shows_in_what_is_printed(site: Site) -> None:
    site.write(f"{TEXT}\n{HEX}\n")
    config = site.load()
    again = pickle.loads(pickle.dumps(config))
    assert again.daemon.route_authentication == config.daemon.route_authentication
    for shown in (effective_config(config, with_defaults=True), repr(config), repr(again), str(again.daemon)):
        assert str(site.keys) in shown
        for key in (TEXT, HEX, str(bytes.fromhex(HEX))):
            assert key not in shown


def test_no_key_shows_in_an_error(site: Site) -> None:
    for secret in ("tellnoone", f"{TEXT} {TEXT}", HEX + "0"):
        site.write(secret)
        assert secret.split()[0] not in site.refusal()
