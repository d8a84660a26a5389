"""Reloads of a real DRO: by SIGHUP and by command, what changes and what does not, and every way to go wrong."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from dro.um.message.events import Data
from supervisor.admin.client import Client, CommandError, find_dro
from supervisor.admin.status import DroStatus
from supervisor.reload.records import ConfirmRecord, PlanRecord, ReloadRecord
from supervisor.tools.ctl.main import main
from supervisor.tools.ctl.output import EXIT_FAILED
from supervisor.tools.ctl.reload import EXIT_DIFFERENT
from tests.rigs.site import Site, life_of
from tests.rigs.waiting import wait_until

BEGINS = "reload begins"


class FaultySite(Site):
    """Its daemon fails in the way of `DRO_FAULT`."""

    PROGRAM: ClassVar[str] = "tests.rigs.faulty_dro"


class Operator:
    """Somebody who edits the file and speaks to the DRO."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.file = site.folder / "dro.xml"
        self.first = self.file.read_text()
        self.client = Client(find_dro(str(site.pid)))
        site.wait(lambda: self.status().is_running, "every process")  # its parent may hear of them after the routes

    def edit(self, *changes: tuple[str, str]) -> None:
        text = self.file.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        self.file.write_text(text)

    def reload(self, **arguments: object) -> ReloadRecord:
        return self.client.ask(ReloadRecord, "reload", within_s=60, **arguments)

    def refusal(self, command: str = "reload", **arguments: object) -> str:
        with pytest.raises(CommandError) as caught:
            self.client.request(command, within_s=60, **arguments)
        return str(caught.value)

    def actions(self, done: ReloadRecord) -> list[tuple[str, str]]:
        return [(action.action, action.target) for action in done.plan.actions]

    def status(self) -> DroStatus:
        return self.client.ask(DroStatus, "status")

    def portals(self) -> dict[str, tuple[str, int]]:
        """State and process of each worker."""
        return {worker.name: (worker.state, worker.pid) for worker in self.status().workers}

    def hang_up(self) -> None:
        os.kill(self.site.pid, signal.SIGHUP)

    def wait_log(self, text: str, count: int = 1) -> None:
        self.site.wait(lambda: self.site.log.count(text) >= count, f"{count} times {text!r} in the log")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One DRO for all tests that leave it as they found it."""
    made = Site(tmp_path_factory.mktemp("reload"), 3)
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def operator(site: Site) -> Iterator[Operator]:
    made = Operator(site)
    before = made.portals()
    yield made
    made.file.write_text(made.first)
    made.reload()
    assert set(made.portals()) == set(before)
    made.client.close()


Own = Callable[..., Operator]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Own]:
    """A DRO for one test alone, possibly one that is sabotaged."""
    sites: list[Site] = []
    operators: list[Operator] = []

    def make(fault: str = "", trds: int = 2) -> Operator:
        monkeypatch.setenv("DRO_FAULT", fault)
        made = (FaultySite if fault else Site)(tmp_path, trds)
        sites.append(made)
        made.start()
        operators.append(Operator(made))
        return operators[-1]

    yield make
    for operator in operators:
        operator.client.close()
    for made in sites:
        made.close()


P2 = "<domain-id>2</domain-id>"
P3 = "<name>P3</name>"


# --- what changes, and what does not -------------------------------------------------------------------------------


def test_a_file_that_means_the_same_changes_nothing(operator: Operator) -> None:
    before, said = operator.portals(), len(operator.site.log)
    text = operator.file.read_text()
    blocks = re.findall(r"    <endpoint>.*?</endpoint>\n", text, re.DOTALL)
    for block in blocks:
        text = text.replace(block, "")
    again = text.replace(
        "</portals>", "\n\n".join(f"<!-- portal -->{block}" for block in reversed(blocks)) + "</portals>"
    )
    operator.file.write_text(again.replace('<route-info check-interval="50"/>', "<route-info\n check-interval='50' />"))
    done = operator.reload()
    assert (done.plan.changes, done.plan.actions, done.is_done) == ((), (), True)
    assert operator.portals() == before
    said_by_workers = [line for line in operator.site.log[said:].splitlines() if "process=tnwgd" not in line]
    assert not [line for line in said_by_workers if "configuration" in line], "nobody was told anything"


def test_what_can_change_in_place_does(operator: Operator) -> None:
    before = operator.portals()
    operator.edit((P2, f"{P2}<cost>7</cost>"), ('check-interval="50"', 'check-interval="40"'))
    done = operator.reload()
    assert operator.actions(done) == [("change in place", "route-manager"), ("change in place", "P2")]
    changes = {change.path: (change.old, change.new, change.origin) for change in done.plan.changes}
    line = 1 + operator.file.read_text().partition("<cost>")[0].count("\n")
    assert changes["endpoint[P2]/cost"] == ("1", "7", f"{operator.file}:{line}")
    assert operator.portals() == before
    assert operator.client.request("explain", topic="T", from_domain=1, to_domain=2)["cost"] == 8


def test_keys_of_route_information_change_in_place_and_are_shown_nowhere(operator: Operator) -> None:
    before, keys = operator.portals(), operator.site.folder / "route.keys"
    given = f"<extensions><route-authentication><key-file>{keys}</key-file></route-authentication></extensions>"
    secrets = "a-key-of-yesterday", "the-key-of-tomorrow"
    operator.edit(("</daemon>", f"{given}</daemon>"))
    assert f"{keys}: cannot read the keys: No such file or directory" in operator.refusal()
    for lines in (secrets[:1], secrets, secrets[::-1]):
        keys.write_text("\n".join(lines))
        keys.chmod(0o600)
        assert operator.actions(operator.reload()) == [("change in place", "route-manager")]
    keys.write_text("too-short")
    assert re.search(r"dro\.xml:\d+: <key-file>: .*route\.keys:1: a key of 9 bytes, it needs 16; ", operator.refusal())
    assert operator.portals() == before
    operator.wait_log("changed=route_authentication", 3)
    assert not [secret for secret in (*secrets, "too-short") if secret in operator.site.log]
    keys.unlink()


def test_one_portal_restarts_and_the_others_do_not_notice(operator: Operator) -> None:
    before = operator.portals()
    operator.edit((P2, f'{P2}<sqn-window size="8192"/>'))
    done = operator.reload()
    assert operator.actions(done) == [("restart", "P2")]
    after = operator.portals()
    assert after.pop("P2")[0] == "ready"
    assert before.pop("P2") not in after.values()
    assert after == before


def test_a_changed_um_file_restarts_its_portal(operator: Operator) -> None:
    before = operator.portals()
    um = operator.site.config(3)
    text = um.read_text()
    try:
        um.write_text("# first of all\n" + text)
        assert operator.reload().plan.changes == ()
        um.write_text(text + "source transport_lbtrm_ignore_interval 333\n")
        done = operator.reload()
        [change] = done.plan.changes
        assert (change.path, change.new) == ("endpoint[P3]/source transport_lbtrm_ignore_interval", "333")
        assert change.origin == f"{um}:{text.count(chr(10)) + 1}"
    finally:
        um.write_text(text)
    after = operator.portals()
    assert after["P3"] != before["P3"]
    assert {n: s for n, s in after.items() if n != "P3"} == {n: s for n, s in before.items() if n != "P3"}


def test_two_portals_change_places(operator: Operator) -> None:
    operator.edit((P2, "<domain-id>@</domain-id>"), ("<domain-id>3<", "<domain-id>2<"), ("@", "3"),
                  ("trd2.cfg", "@"), ("trd3.cfg", "trd2.cfg"), ("@", "trd3.cfg"))  # fmt: skip
    routed = operator.site.log.count("routes=6")
    done = operator.reload()
    assert operator.actions(done) == [("restart", "P2"), ("restart", "P3")]
    operator.site.wait(lambda: operator.site.log.count("routes=6") > routed, "routes among all three")
    assert "two portals in one domain" not in operator.site.log
    answer = operator.client.request("explain", topic="T", from_domain=2, to_domain=3)
    assert (answer["ingress"], answer["egress"]) == ("P3", "P2")


def test_what_needs_a_restart_of_the_daemon_waits(operator: Operator) -> None:
    before = operator.portals()
    operator.edit((f"<name>{operator.site.name}<", "<name>OTHER<"), (P2, f"{P2}<cost>3</cost>"))
    done = operator.reload()
    assert done.pending == (f"daemon/name: {operator.site.name} -> OTHER",)
    status = operator.status()
    assert (status.name, status.pending) == (operator.site.name, done.pending)
    assert operator.portals() == before
    assert operator.reload().pending == done.pending, "it waits until the file or the daemon is another"
    operator.edit(("<name>OTHER<", f"<name>{operator.site.name}<"))
    assert operator.reload().pending == ()
    assert operator.status().pending == ()


def test_a_log_file_takes_over_and_gives_back(operator: Operator) -> None:
    path = operator.site.folder / "new.log"
    operator.edit(('<log type="console"/>', f'<log type="file">{path}</log>'))
    done = operator.reload()
    assert operator.actions(done) == [("change in place", "log")]
    operator.site.wait(path.exists, "the new log")
    written = len(operator.site.log)
    operator.file.write_text(operator.first)
    operator.reload()
    wait_until(lambda: "reload begins" in path.read_text(), "the reload in the new log")
    operator.site.wait(lambda: "reload done" in operator.site.log[written:], "the end of the reload on the console")


# --- what is refused -----------------------------------------------------------------------------------------------


WRONG = [
    (P2, "<domain-id>0</domain-id>", "out of range"),
    ("trd2.cfg", "nowhere.cfg", "does not exist"),
]


@pytest.mark.parametrize(("old", "new", "why"), WRONG)
def test_a_file_that_cannot_be_used_changes_nothing(operator: Operator, old: str, new: str, why: str) -> None:
    before = operator.portals()
    operator.edit((old, new))
    refusal = operator.refusal()
    assert re.search(why, refusal)
    assert re.search(r"\.(xml|cfg):\d+: ", refusal), "it says where"
    assert operator.portals() == before
    failed = operator.site.log.count("reload refused")
    operator.hang_up()
    operator.wait_log("reload refused", failed + 1)
    assert operator.portals() == before


def test_no_file_is_no_reason_to_stop(operator: Operator) -> None:
    operator.file.rename(operator.file.with_name("away"))
    try:
        assert "cannot read" in operator.refusal()
    finally:
        operator.file.with_name("away").rename(operator.file)
    assert all(state == "ready" for state, _ in operator.portals().values())


def test_a_port_that_is_taken_is_found_before_anything_changes(operator: Operator) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        option = f'<lbm-attributes><option scope="context" name="request_tcp_port" value="{port}"/></lbm-attributes>'
        before = operator.portals()
        operator.edit((P2, f"{P2}<cost>9</cost>"), ("<lbm-config>trd3.cfg</lbm-config>",
                      f"<lbm-config>trd3.cfg</lbm-config>{option}"))  # fmt: skip
        refusal = operator.refusal()
    assert "portal 'P3'" in refusal
    assert "request_tcp_port" in refusal
    assert operator.portals() == before
    assert operator.client.ask(PlanRecord, "diff").changes, "the file still differs, the DRO is as it was"


def test_arguments_are_checked(operator: Operator) -> None:
    assert "'confirm' has to be a number" in operator.refusal(confirm="soon")
    assert "'confirm' has to be a number" in operator.refusal(confirm=-1)
    assert "'no_wait' has to be true or false" in operator.refusal(no_wait=3)
    assert "no such argument: 'at'" in operator.refusal(at=1)
    assert "no reload waits for a confirmation" in operator.refusal("confirm")
    assert "no reload waits for a confirmation" in operator.refusal("rollback")


# --- several at once -----------------------------------------------------------------------------------------------


def test_no_portal_is_stopped_or_started_beside_a_reload(operator: Operator) -> None:
    operator.edit((P2, f"{P2}<cost>7</cost>"))
    _, slow = operator.portals()["P2"]
    with Client(find_dro(str(operator.site.pid))) as second:
        os.kill(slow, signal.SIGSTOP)  # so that the reload takes its time
        try:
            thread = threading.Thread(target=operator.reload, daemon=True)
            thread.start()
            operator.site.wait(lambda: second.ask(DroStatus, "status").change == "a reload", "the reload")
            for order in ("restart", "pause", "resume", "drain"):
                with pytest.raises(CommandError, match="a reload is under way"):
                    second.request(f"portal {order}", name="P1")
        finally:
            os.kill(slow, signal.SIGCONT)
        thread.join(60)
        assert second.ask(DroStatus, "status").change == ""
        second.request("portal restart", name="P1")


# --- confirmation --------------------------------------------------------------------------------------------------


def test_what_is_not_confirmed_is_taken_back(operator: Operator) -> None:
    operator.edit((P2, f"{P2}<cost>7</cost>"), (P3, "<name>third</name>"))
    done = operator.reload(confirm=1)
    assert done.confirm_s == 1
    assert "third" in operator.portals()
    assert "confirmation" in operator.status().change
    operator.site.wait(lambda: "P3" in operator.portals() and operator.status().change == "", "the way back")
    assert "third" not in operator.portals()
    assert {change.path for change in operator.client.ask(PlanRecord, "diff").changes} == {
        "endpoint[P2]/cost", "endpoint[P3]", "endpoint[third]",
    }  # fmt: skip


def test_what_is_confirmed_stays(operator: Operator) -> None:
    operator.edit((P2, f"{P2}<cost>7</cost>"))
    operator.reload(confirm=600)
    assert "not confirmed yet" in operator.refusal()
    operator.hang_up()
    operator.wait_log("SIGHUP ignored: the last reload is not confirmed yet")
    assert operator.client.ask(ConfirmRecord, "confirm").file == str(operator.file)
    assert operator.client.ask(PlanRecord, "diff").is_empty
    assert "no reload waits" in operator.refusal("confirm")


def test_nothing_to_do_is_nothing_to_confirm(operator: Operator) -> None:
    assert operator.reload(confirm=600).confirm_s == 0
    assert "no reload waits" in operator.refusal("confirm")


# --- as an operator types it ---------------------------------------------------------------------------------------


def test_the_commands(operator: Operator, capsys: pytest.CaptureFixture[str]) -> None:
    def typed(*words: str) -> tuple[int, list[str]]:
        status = main([*words, "--dro", str(operator.site.pid)])
        return status, capsys.readouterr().out.splitlines()

    file = operator.file
    assert typed("diff") == (0, [f"{file}: no difference"])
    assert typed("reload") == (0, [f"{file}: nothing has changed"])
    operator.edit((P2, f"{P2}<cost>7</cost>"), (P3, "<name>third</name>"))
    line, domain = (1 + file.read_text().partition(text)[0].count("\n") for text in ("<cost>", "third"))
    counted = f"{file}: 3 changes: 1 portal gone, 1 live, 1 portal new"
    actions = ["change in place: P2", "drain and remove: P3", "start: third"]
    assert typed("diff") == (EXIT_DIFFERENT, [f"{counted} (-v lists them)", *actions])
    told = [
        counted,
        f"  endpoint[P3]: gone: endpoint in domain 3, cost 1  [was {file}:{domain - 1}]",
        f"  endpoint[P2]/cost: 1 -> 7  [live; {file}:{line}]",
        f"  endpoint[third]: new: endpoint in domain 3, cost 1  [{file}:{domain - 1}]",
        *actions,
    ]
    assert typed("diff", "-v") == (EXIT_DIFFERENT, told)
    status, shown = typed("reload", "--verbose", "--confirm", "300")
    assert (status, shown[:7]) == (0, told)
    assert re.fullmatch(r"done in \d+\.\d s", shown[7])
    assert shown[8:] == [f"taken back in 300 s unless you say: tnwgdctl --dro {operator.site.pid} confirm"]
    assert "under way: a reload that waits for its confirmation" in typed("status")[1]
    status, shown = typed("explain", "T", "--from", "1", "--to", "2")  # nobody wants it
    assert (status, shown[0]) == (EXIT_FAILED, "topic T from domain 1 to domain 2: does not flow")
    assert typed("rollback") == (0, ["taken back; the file still has the change"])
    assert typed("diff", str(file), "--json")[0] == EXIT_DIFFERENT
    assert typed("confirm")[0] == EXIT_FAILED
    status, shown = typed("reload", "--no-wait")
    assert (status, shown[-1]) == (0, "begun; the log tells the end")
    operator.site.wait(lambda: operator.status().change == "", "the end")


# --- what goes wrong -----------------------------------------------------------------------------------------------


def test_a_portal_that_cannot_start_takes_the_whole_reload_back(own: Own) -> None:
    operator = own("unchecked", 3)
    before = operator.portals()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        option = ('<lbm-attributes><option scope="context" name="request_tcp_port" '
                  f'value="{taken.getsockname()[1]}"/></lbm-attributes>')  # fmt: skip
        um = "<lbm-config>trd3.cfg</lbm-config>"
        operator.edit((P2, f"{P2}<cost>9</cost>"), (P3, "<name>third</name>"), (um, um + option))
        refusal = operator.refusal()
    assert "portal third: no port of request_tcp_port" in refusal
    assert "the former configuration is in force again" in refusal
    after = operator.portals()
    assert after.pop("P3")[0] == "ready"
    before.pop("P3")
    assert after == before
    answer = operator.client.request("explain", topic="T", from_domain=1, to_domain=2)
    assert answer["cost"] == 2, "the change in place was taken back as well"
    operator.file.write_text(operator.first)
    assert operator.reload().plan.changes == ()


def test_a_trial_that_hangs_is_given_up_and_the_dro_answers_meanwhile(own: Own) -> None:
    operator = own("hang")
    before = operator.portals()
    operator.edit((P2, f"{P2}<cost>9</cost>"))
    assert "not done after 0.5 s" in operator.refusal()
    operator.hang_up()
    operator.wait_log(BEGINS, 2)
    assert operator.portals() == before, "answered while the trial hangs"


@pytest.mark.parametrize("phase", ["trying", "applying"])
def test_a_parent_that_is_killed_in_the_middle_leaves_a_file_to_start_with(own: Own, phase: str) -> None:
    operator = own("slow")
    operator.edit((P2, f"{P2}<cost>9</cost>"), ("<name>P1</name>", "<name>first</name>"))
    operator.hang_up()
    site = operator.site
    if phase == "trying":
        site.wait((site.folder / "trying").exists, "the trial")
    else:
        operator.wait_log("operation begins")
    pid, workers = site.pid, list(site.workers().values())
    lives = {worker: life_of(worker) for worker in workers}
    os.kill(pid, signal.SIGKILL)
    assert site.daemon is not None
    site.daemon.wait()
    site.daemon = None
    wait_until(lambda: not [w for w in workers if life_of(w) == lives[w]], "the end of all processes")
    site.start()
    again = Operator(site)
    assert set(again.portals()) == {"route-manager", "first", "P2"}
    assert again.client.ask(PlanRecord, "diff").is_empty
    assert site.leftovers(pid) == []
    again.client.close()


def test_a_portal_that_dies_during_a_reload_comes_back_with_the_new_configuration(own: Own) -> None:
    operator = own("slow")
    operator.edit((P2, f"{P2}<cost>9</cost>"))
    operator.hang_up()
    operator.site.wait((operator.site.folder / "trying").exists, "the trial")
    operator.site.kill("P2")
    operator.wait_log("reload done")
    operator.site.wait(lambda: operator.portals()["P2"][0] == "ready", "the portal")
    answer = operator.client.request("explain", topic="T", from_domain=1, to_domain=2)
    assert answer["cost"] == 10
    assert operator.client.ask(PlanRecord, "diff").is_empty


def test_portals_that_an_operator_has_stopped_or_removed(own: Own) -> None:
    operator = own("", 3)
    ask = operator.client.request
    ask("portal pause", name="P2", within_s=60)
    ask("portal remove", name="P3", within_s=60)
    operator.edit((P2, f'{P2}<sqn-window size="8192"/>'))
    done = operator.reload()
    assert operator.actions(done) == [("start", "P3"), ("restart", "P2")]
    assert operator.portals()["P2"] == ("paused", 0)
    assert operator.portals()["P3"][0] == "ready"
    ask("portal resume", name="P2", within_s=60)
    assert operator.portals()["P2"][0] == "ready"


def test_applications_that_run_take_a_domain_id_that_was_changed(own: Own) -> None:
    """They were deaf from then on, and nothing said so."""
    operator = own()
    site = operator.site
    heard: list[bytes] = []
    with (
        BlockingContext(Config.load(site.config(1))) as first,
        BlockingContext(Config.load(site.config(2))) as second,
    ):
        receiver = second.receiver("t", on_event=lambda e: heard.append(e.data) if isinstance(e, Data) else None)
        source = first.source("t")

        def flows(mark: bytes) -> bool:
            source.send(mark)
            time.sleep(0.005)  # the pace of the source
            return heard[-1:] == [mark]

        site.wait(lambda: flows(b"before"), "a message", 60)
        assert second.domain_id == 2
        operator.edit((P2, "<domain-id>9</domain-id>"))
        done = operator.reload()
        assert any("domain-id: 2 -> 9" in warning for warning in done.plan.warnings)
        site.wait(lambda: flows(b"after"), "a message again", 30)
        assert second.domain_id == 9
        assert receiver.sources
    operator.wait_log('reload done, but note="endpoint[P2]/domain-id: 2 -> 9')
