"""The Debian packages: installed on a machine without a network, used, upgraded and removed.

The packages are built once. Each test has a machine of its own, on which they are installed already.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import deploy.completion.generate
import deploy.man.generate
from deploy.debian import build
from tests.rigs.debian import Booted, Machine
from tests.rigs.waiting import wait_until

pytestmark = [pytest.mark.debian, pytest.mark.slow, pytest.mark.timeout(900)]
USER = "open-dro"
EXAMPLE = "/usr/share/doc/open-dro/examples/direct-link"
COMPLETE = """\
source /usr/share/bash-completion/bash_completion
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
_completion_loader "$1"
[[ $(complete -p "$1") =~ -F\\ ([^ ]+) ]] && "${BASH_REMATCH[1]}" "$1" "${!#}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Built(NamedTuple):
    packages: list[Path]
    later: list[Path]
    """The same of a higher version, with another /etc/open-dro/trd2.cfg."""
    installed: Path
    """The changes that the installation made to a machine."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both packages in two versions, and a machine with the first."""
    folder = tmp_path_factory.mktemp("package")
    deploy.completion.generate.main([])
    deploy.man.generate.main([])
    build.wheels(folder / "wheels")
    build.stage(folder / "wheels", folder / "root")
    packages = build.pack(folder / "root", folder, "1.0", "none")
    with (folder / "root/open-dro/etc/open-dro/trd2.cfg").open("a") as options:
        options.write("# of version 1.1\n")
    later = build.pack(folder / "root", folder, "1.1", "none")
    shutil.rmtree(folder / "root")
    with Machine(folder / "machine") as machine:
        install(machine, packages)
    return Built(packages, later, machine.changes)


def install(machine: Machine, packages: list[Path]) -> str:
    for package in packages:
        machine.put(package, f"/var/tmp/{package.name}")
    return machine.run(
        ["dpkg", "--force-unsafe-io", "--install", *(f"/var/tmp/{package.name}" for package in packages)]
    ).stdout


@pytest.fixture
def machine(built: Built, tmp_path: Path) -> Iterator[Machine]:
    with Machine(tmp_path / "machine", built.installed) as machine:
        yield machine


def test_every_command_knows_its_version(machine: Machine) -> None:
    for command in build.commands():
        assert machine.run([command, "--version"], user="nobody").stdout == f"{command} {build.project()['version']}\n"


def test_the_compiled_steps_run_and_bytecode_is_there(machine: Machine) -> None:
    script = "import dro.timers; from dro.compiled_steps import form; print(form())"
    said = machine.run(["/usr/lib/open-dro/bin/python3", "-v", "-c", script], user="nobody").stdout
    assert "\ncompiled\n" in said
    assert f"matches /{build.SITE}/dro/compiled_steps.py" in said


def test_the_starter_configuration_is_correct(machine: Machine) -> None:
    assert (
        machine.run(["tnwgd", "-v", "/etc/open-dro/dro.xml"], user=USER).stdout == "/etc/open-dro/dro.xml: no errors\n"
    )
    assert str(build.ROOT) not in machine.path("/etc/open-dro/dro.xml").read_text()


def test_a_dro_runs_as_its_user(machine: Machine, tmp_path: Path) -> None:
    """An example of the package, from the first message to the last: reloads, and an end in good order."""
    machine.run(["cp", "-rT", EXAMPLE, "/etc/open-dro"])
    said = tmp_path / "tnwgd"
    dro = machine.start(["tnwgd", "/etc/open-dro/dro-g1.xml"], said, USER)
    wait_until(lambda: "has started" in said.read_text(), "the DRO to run", detail=said.read_text)
    status = machine.run(["tnwgdctl", "status"], user=USER).stdout
    assert "G1-TRD1" in status
    assert "G1-TRD2" in status
    assert "nothing has changed" in machine.run(["tnwgdctl", "reload"], user=USER).stdout

    received = tmp_path / "lbmrcv"
    receiver = machine.start(["lbmrcv", "-c", "/etc/open-dro/trd2.cfg", "-V", "-r", "10", "topic"], received, USER)
    wait_until(lambda: "topic" in machine.run(["tnwgdctl", "interest"], user=USER).stdout, "interest", every_s=0.2)
    machine.start(["lbmsrc", "-c", "/etc/open-dro/trd1.cfg", "-V", "-P", "20", "topic"], tmp_path / "lbmsrc", USER)
    assert receiver.wait(30) == 0, received.read_text()

    names = machine.path("/proc").glob("[0-9]*/comm")
    pid = next(name.parent.name for name in names if name.read_text() == "tnwgd\n")
    options = machine.path("/etc/open-dro/dro-g1.xml")
    options.write_text(
        options.read_text().replace("<domain-id>2</domain-id>", "<domain-id>2</domain-id><cost>7</cost>")
    )
    machine.run(["sh", "-c", f"kill -HUP {pid}"])
    wait_until(
        lambda: "path=endpoint[G1-TRD2]/cost old=1 new=7" in said.read_text(), "the reload", detail=said.read_text
    )
    machine.run(["sh", "-c", f"kill -TERM {pid}"])
    assert dro.wait(30) == 0, said.read_text()
    assert machine.run(["find", "/tmp", "/dev/shm", "-user", USER]).stdout == ""


def test_units_under_systemd(built: Built, tmp_path: Path) -> None:
    """Start, reload, a refused reload, the end of a portal and of the parent, history, stop."""
    with Booted(tmp_path / "booted", built.installed) as machine:

        def ask(*command: str) -> str:
            return machine.run(command, check=False).stdout.strip()

        def main_pid() -> int:
            return int(ask("systemctl", "show", "--property=MainPID", "--value", "tnwgd@dro"))

        settings = machine.path("/etc/open-dro/dro.xml")
        text = settings.read_text().replace("some topics:", "some topics -->").replace("</acl> -->", "</acl>")
        settings.write_text(text)  # with patterns, for which memory may have to be made executable
        machine.path("/etc/open-dro/dro.env").write_text(
            "TNWGD_OPTIONS=--history /var/lib/open-dro/history --history-interval 1\n"
        )
        assert ask("systemctl", "start", "tnwgd@missing").startswith("Assertion failed")
        machine.run(["systemctl", "start", "tnwgd@dro"])
        assert 'Status: "DRO: 2 portals run"' in ask("systemctl", "status", "tnwgd@dro")
        machine.run(["systemctl", "reload", "tnwgd@dro"])
        settings.write_text(settings.read_text() + "broken")
        assert ask("systemctl", "reload", "tnwgd@dro").startswith("Job for tnwgd@dro.service failed")
        assert "dro.xml:" in ask("journalctl", "--unit=tnwgd@dro", "--output=cat", "--lines=20")
        settings.write_text(settings.read_text().removesuffix("broken"))

        first = main_pid()
        workers = json.loads(ask("tnwgdctl", "--json", "--dro", "DRO", "status"))["workers"]
        portal = next(worker["pid"] for worker in workers if worker["name"] == "DRO-TRD1")
        machine.run(["sh", "-c", f"kill -KILL {portal}"])
        wait_until(
            lambda: "killed by SIGKILL" in ask("journalctl", "-utnwgd@dro", "-perr", "-ocat"), "an error", every_s=0.2
        )
        assert (ask("systemctl", "is-active", "tnwgd@dro"), main_pid()) == ("active", first)
        machine.run(["sh", "-c", f"kill -KILL {first}"])
        wait_until(lambda: main_pid() not in (0, first), "a new parent", every_s=0.2)
        wait_until(lambda: ask("systemctl", "is-active", "tnwgd@dro") == "active", "it is ready again", every_s=0.2)
        assert "DRO-TRD1" in ask("tnwgdctl", "--dro", "DRO", "status")
        wait_until(lambda: list(machine.path("/var/lib/open-dro/history/journal").glob("*")), "a history", every_s=0.2)

        machine.run(["systemctl", "start", "tnwgd-history-receive", "tnwgd-history-compact"])
        assert ask("systemctl", "is-active", "tnwgd-history-receive") == "active"
        machine.run(["systemctl", "start", "lbmrd"])
        assert ask("systemctl", "show", "--property=StatusText", "--value", "lbmrd").startswith("lbmrd at ")
        machine.run(["systemctl", "stop", "lbmrd"])
        assert ask("systemctl", "show", "--property=Result", "--value", "lbmrd") == "success"
        machine.run(["systemctl", "stop", "tnwgd@dro", "tnwgd-history-receive"])
        assert ask("systemctl", "show", "--property=Result", "--value", "tnwgd@dro") == "success"
        assert ask("find", "/dev/shm", "/run/open-dro", "-user", USER) == ""


def test_man_finds_the_pages(machine: Machine) -> None:
    assert machine.run(["man", "--where", "tnwgd"]).stdout == "/usr/share/man/man1/tnwgd.1.gz\n"
    assert "joins topic resolution domains" in machine.run(["man", "tnwgd"]).stdout
    for command in build.commands():
        machine.run(["man", "--where", command])
    assert machine.run(["man", "--where", "tnwgd-report"], check=False).returncode != 0, "needs Spark"


@pytest.mark.parametrize(
    ("line", "offered"), [("tnwgd --v", {"--validate", "--version"}), ("tnwgdctl re", {"reload", "recalculate"})]
)
def test_bash_completes(line: str, offered: set[str], machine: Machine) -> None:
    assert set(machine.run(["bash", "--norc", "-c", COMPLETE, "bash", *line.split()]).stdout.split()) == offered


def test_an_upgrade_keeps_the_configuration(built: Built, machine: Machine) -> None:
    changed, own = machine.path("/etc/open-dro/trd1.cfg"), machine.path("/etc/open-dro/west.xml")
    changed.write_text("# changed\n")
    own.write_text("<!-- broken")
    machine.path("/var/lib/open-dro/history").touch()
    install(machine, built.later)
    assert changed.read_text() == "# changed\n"
    assert own.read_text() == "<!-- broken"
    assert machine.path("/etc/open-dro/trd2.cfg").read_text().endswith("# of version 1.1\n"), "was not changed here"
    assert machine.path("/var/lib/open-dro/history").exists()
    assert "1.1" in machine.run(["dpkg-query", "--show", "open-dro"]).stdout
    assert machine.run(["tnwgd", "-v", "/etc/open-dro/west.xml"], user=USER, check=False).returncode == 1


def test_a_purge_leaves_logs_and_histories_alone(machine: Machine) -> None:
    machine.path("/var/lib/open-dro/history").touch()
    said = machine.run(["dpkg", "--purge", "open-dro-history", "open-dro"]).stdout
    assert "warning" not in said
    left = machine.run(["find", "/etc", "/usr", "/lib", "/var", "-xdev", "-name", "*open-dro*"]).stdout.split()
    assert [name for name in left if not name.startswith("/var/tmp/")] == ["/var/lib/open-dro"]
    assert machine.path("/var/lib/open-dro/history").exists()
    assert machine.run(["find", "/usr", "-xdev", "-name", "*tnwgd*"]).stdout == ""


def test_without_histories_the_commands_say_what_is_missing(machine: Machine) -> None:
    machine.run(["dpkg", "--purge", "open-dro-history"])
    for command in (
        ["tnwgd", "--history", "/tmp/h", "/etc/open-dro/dro.xml"],
        ["tnwgd-history", "compact", "--history", "/tmp"],
    ):
        refused = machine.run(command, user=USER, check=False)
        assert refused.returncode in (1, 2)
        assert "open-dro-history" in refused.stdout
        assert "Traceback" not in refused.stdout
