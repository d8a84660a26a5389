"""What is tried before a reload: files, sockets, memory; and that nothing is a problem that a plan itself frees."""

from __future__ import annotations

import os
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.config.dro_xml.model import DroConfig
from dro.errors import ConfigError
from dro.log.handler import Settings
from supervisor.reload.plan import ActionKind
from supervisor.reload.trial import Situation, Trial, compare, read_new, try_out

SpaceLeft = namedtuple("SpaceLeft", "f_bavail f_frsize")


def endpoint(name: str, domain: int, *options: tuple[str, object], more: str = "") -> str:
    given = {"resolver_multicast_port": 15000 + domain, "resolver_multicast_interface": "127.0.0.1"}
    given |= {"request_tcp_interface": "127.0.0.1", **dict(options)}
    inner = "".join(f'<option scope="context" name="{k}" value="{v}"/>' for k, v in given.items())
    return (f"<endpoint><name>{name}</name><domain-id>{domain}</domain-id>{more}"
            f"<lbm-attributes>{inner}</lbm-attributes></endpoint>\n")  # fmt: skip


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of the loopback interface that somebody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


class Files:
    """The configuration that runs, and the one to try."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, *portals: str, daemon: str = "") -> DroConfig:
        return read_new(self.write(*portals, daemon=daemon))[0]

    def write(self, *portals: str, daemon: str = "") -> str:
        path = self.folder / "dro.xml"
        text = "\n".join(portals)
        path.write_text(
            f'<tnw-gateway version="1.0"><daemon>{daemon}</daemon><portals>\n{text}</portals></tnw-gateway>'
        )
        return str(path)

    def situation(self, config: DroConfig, *, portals: str = "AB", resting: str = "") -> Situation:
        return Situation(config, frozenset(portals), frozenset(resting), self.folder, Settings())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


A, B, C = (endpoint(name, domain) for domain, name in enumerate("ABC", start=1))


def refusal(situation: Situation, path: str) -> str:
    with pytest.raises(ConfigError) as caught:
        try_out(situation, path)
    return str(caught.value)


def kinds(trial: Trial) -> list[tuple[ActionKind, str]]:
    return [(action.kind, action.target) for action in trial.plan.actions]


def test_keys_are_read_again_and_a_file_without_one_is_refused(files: Files) -> None:
    keys = files.folder / "route.keys"
    given = f"<extensions><route-authentication><key-file>{keys}</key-file></route-authentication></extensions>"
    keys.write_text("the-key-of-before\n")
    situation = files.situation(files.load(A, B, daemon=given))
    assert kinds(try_out(situation, files.write(A, B, daemon=given))) == []
    keys.write_text("the-key-of-now-on\nthe-key-of-before\n")
    trial = try_out(situation, files.write(A, B, daemon=given))
    assert kinds(trial) == [(ActionKind.LIVE, "route-manager")]
    after = trial.after.daemon.route_authentication
    assert after is not None
    assert after.keys == (b"the-key-of-now-on", b"the-key-of-before")
    keys.write_text("# none\n")
    assert f"<key-file>: {keys}: has no key; write a key as " in refusal(situation, files.write(A, B, daemon=given))
    keys.unlink()
    assert f"{keys}: cannot read the keys: No such file" in refusal(situation, files.write(A, B, daemon=given))


def test_a_trial_tells_what_would_be(files: Files) -> None:
    situation = files.situation(files.load(A, B))
    trial = try_out(situation, files.write(A, C, daemon="<name>N</name>"))
    assert kinds(trial) == [(ActionKind.REMOVE, "B"), (ActionKind.ADD, "C"), (ActionKind.PENDING, "name")]
    assert trial.after.daemon.name == ""
    assert [portal.name for portal in trial.after.portals] == ["A", "C"]


def test_a_portal_that_an_operator_removed_comes_back(files: Files) -> None:
    situation = files.situation(files.load(A, B), portals="A")
    assert kinds(try_out(situation, files.write(A, B))) == [(ActionKind.ADD, "B")]


def test_a_fixed_port_that_is_taken(files: Files, taken: int) -> None:
    situation = files.situation(files.load(A, B))
    told = refusal(situation, files.write(A, endpoint("B", 2, ("request_tcp_port", taken)), C))
    assert "dro.xml:4: portal 'B': no port of request_tcp_port can be bound on 127.0.0.1" in told
    assert "'C'" not in told


def test_a_range_of_ports_that_is_taken(files: Files, taken: int) -> None:
    situation = files.situation(files.load(A))
    options = ("request_tcp_port_low", taken), ("request_tcp_port_high", taken)
    assert "portal 'B': no port of request_tcp_port_low/_high" in refusal(
        situation, files.write(A, endpoint("B", 2, *options))
    )


def test_every_portal_with_a_problem_is_named(files: Files, taken: int) -> None:
    situation = files.situation(files.load(A), portals="A")
    port = ("request_tcp_port", taken)
    told = refusal(situation, files.write(A, endpoint("B", 2, port), endpoint("C", 3, port)))
    assert "portal 'B'" in told
    assert "portal 'C'" in told


def test_a_portal_that_is_paused_is_not_tried(files: Files, taken: int) -> None:
    situation = files.situation(files.load(A, B), resting="B")
    trial = try_out(situation, files.write(A, endpoint("B", 2, ("request_tcp_port", taken))))
    assert kinds(trial) == [(ActionKind.RESTART, "B")]


def test_what_a_stopping_portal_holds_will_be_free(files: Files, taken: int) -> None:
    """The port may be held by the portal that goes: it is not known who holds it, so it is no problem."""
    port = ("request_tcp_port", taken)
    running = files.load(A, endpoint("B", 2, port))
    restarted = endpoint("B", 2, port, more='<sqn-window size="8192"/>')
    assert kinds(try_out(files.situation(running), files.write(A, restarted))) == [(ActionKind.RESTART, "B")]
    trial = try_out(files.situation(running), files.write(A, endpoint("C", 3, port)))
    assert kinds(trial) == [(ActionKind.REMOVE, "B"), (ActionKind.ADD, "C")]
    told = refusal(files.situation(running), files.write(A, endpoint("B", 2, port), endpoint("C", 3, port)))
    assert "portal 'C'" in told, "B goes on, and so does its hold"


def test_an_interface_that_is_not_there(files: Files) -> None:
    situation = files.situation(files.load(A))
    trial = try_out(situation, files.write(A, endpoint("B", 2, ("resolver_multicast_interface", "203.0.113.9"))))
    (warning,) = trial.warnings
    assert "203.0.113.9" in warning
    assert "dro.xml:" in warning


def test_a_port_of_topic_resolution_that_somebody_has_for_himself(files: Files) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        mine.bind(("0.0.0.0", 0))
        port = mine.getsockname()[1]
        situation = files.situation(files.load(A))
        told = refusal(situation, files.write(A, endpoint("B", 2, ("resolver_multicast_port", port))))
    assert "cannot listen to group" in told
    assert "portal 'B'" in told


def test_too_little_shared_memory(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    running = files.load(A)
    path = files.write(A, B)
    monkeypatch.setattr(os, "statvfs", lambda _: SpaceLeft(163, 1 << 10))
    told = refusal(files.situation(running, portals="A"), path)
    assert "need 164 KiB of shared memory, 163 KiB are free; enlarge " in told
    monkeypatch.setattr(os, "statvfs", lambda _: SpaceLeft(164, 1 << 10))
    assert kinds(try_out(files.situation(running, portals="A"), path)) == [(ActionKind.ADD, "B")]


def test_memory_of_portals_that_go_is_free(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    running = files.load(A, B)
    monkeypatch.setattr(os, "statvfs", lambda _: SpaceLeft(0, 1))
    assert kinds(try_out(files.situation(running), files.write(A, C)))[0] == (ActionKind.REMOVE, "B")


def test_a_log_that_cannot_be_had(files: Files) -> None:
    situation = files.situation(files.load(A))
    told = refusal(situation, files.write(A, daemon='<log type="file">/nowhere/at/all</log>'))
    assert "<log>" in told
    assert "dro.xml:1" in told


def test_what_this_release_cannot_do_is_refused(files: Files) -> None:
    situation = files.situation(files.load(A))
    files.folder.joinpath("broker.cfg").write_text("source transport broker\n")
    config = f"<lbm-config>{files.folder}/broker.cfg</lbm-config>"
    told = refusal(situation, files.write(A, endpoint("B", 2, more=config)))
    assert "broker is not supported yet" in told


def test_warnings_come_along(files: Files) -> None:
    situation = files.situation(files.load(A, B))
    unknown = "<endpoint><name>B</name><domain-id>2</domain-id><lbm-config>{}</lbm-config></endpoint>"
    (files.folder / "b.cfg").write_text("context resolver_multicast_port 15002\ncontext no_such_option 3\n")
    trial = compare(situation, files.write(A, unknown.format(files.folder / "b.cfg")))
    assert any("b.cfg:2" in warning for warning in trial.warnings)


def test_a_comparison_tries_nothing(files: Files, taken: int) -> None:
    situation = files.situation(files.load(A), portals="A")
    trial = compare(situation, files.write(A, endpoint("B", 2, ("request_tcp_port", taken))))
    assert kinds(trial) == [(ActionKind.ADD, "B")]


def test_nothing_stays_open(files: Files) -> None:
    situation = files.situation(files.load(A), portals="A")
    path = files.write(A, B, C)
    before = set(os.listdir("/proc/self/fd"))
    try_out(situation, path)
    assert set(os.listdir("/proc/self/fd")) == before
