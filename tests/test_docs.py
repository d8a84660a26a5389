"""The guides say what the program does: commands, options, exit statuses, states, classes, and examples that load."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import supervisor.resolvers.lbmrd
import supervisor.resolvers.umsrs
import supervisor.start.command_line
import supervisor.tools.ctl.main
import supervisor.tools.init.main
import supervisor.tools.top.main
from dro.config.change.reload_class import ReloadClass
from dro.metrics.slots import DROP_SLOTS
from dro.tools.immediate import lbmimsg, lbmireq, lbmreq, lbmresp, lbmtrreq
from dro.tools.lbm import lbmrcv, lbmsrc, lbmwrcv
from dro.tools.lbm.arguments import is_not_yet
from dro.tools.lbmmon import lbmmon, tnwgdcmd, tnwgdmon
from dro.tools.umdump import main as umdump
from supervisor.parent import parent
from supervisor.parent.workers import WorkerState
from supervisor.tools.ctl import output as ctl_output
from supervisor.tools.ctl import reload as ctl_reload
from supervisor.tools.init import main as init
from tests.builders.dro_file import parse_dro
from tests.fakes.lookup import FakeLookup

DOCS = Path(__file__).parents[1] / "docs"
COMMANDS = {
    "run.md": "tnwgd, tnwgd init direct, tnwgd init peer, tnwgdctl doctor",
    "change.md": """tnwgdctl diff, tnwgdctl reload, tnwgdctl confirm, tnwgdctl rollback, tnwgdctl drain,
        tnwgdctl portal restart, tnwgdctl portal pause, tnwgdctl portal resume, tnwgdctl portal drain,
        tnwgdctl portal add, tnwgdctl portal remove""",
    "watch.md": """tnwgd-top, tnwgdctl status, tnwgdctl portals, tnwgdctl topics, tnwgdctl sources, tnwgdctl interest,
        tnwgdctl proxies, tnwgdctl blocked, tnwgdctl losses, tnwgdctl routes, tnwgdctl explain""",
    "upgrade.md": "tnwgdctl upgrade",
    "lbmrd.md": "lbmrd",
    "umsrs.md": "umsrs",
    "peer-links.md": "tnwgdctl peers, tnwgdctl topology, tnwgdctl path, tnwgdctl recalculate",
}
"""The guide that explains each command."""
GUIDE_OF = {command.strip(): guide for guide, listed in COMMANDS.items() for command in listed.split(",")}
OF_ALL = {"--dro", "--run-dir", "--json"}
"""Options of every command of `tnwgdctl`: explained once."""
EVERYWHERE = {"-h", "--help"}
# Words in capitals that are not of Ultra Messaging: of computers and networks; what options and examples are called.
KNOWN_TO_ALL = set(
    re.findall(
        r"\w+",
        """ALL AMD AND API CIDR CNI CPU DEBUG DNS DTD EPYC FIFO HTML HTTP ICMP IGMP INFO ISO JSON MTU NAT NATS NFS NUL
        PCRE PEM PID POSIX PSS REGEX RST SETGID SETUID SIGABRT SIGHUP SIGINT SIGKILL SIGSTOP SIGTERM
        SNMP SVG TCP TLS TTL TUN UDP UNIX URL UTC VLAN VPN WAN
        XML YARN""",
    )
)
PLACEHOLDERS = {"DIR", "EAST", "MSEC", "NORTH", "NUM", "SEC", "SOUTH", "WEST"}
TOOLS = [lbmsrc, lbmrcv, lbmwrcv, lbmreq, lbmresp, lbmimsg, lbmireq, lbmtrreq, lbmmon, tnwgdmon, tnwgdcmd, umdump]


def read(name: str) -> str:
    return (DOCS / name).read_text()


def commands(parser: argparse.ArgumentParser, prog: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command without commands below it."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield prog, parser
    for action in below:
        for name, one in action.choices.items():
            yield from commands(one, f"{prog} {name}")


def options(parser: argparse.ArgumentParser) -> list[tuple[str, ...]]:
    """The spellings of each option that does something."""
    return [
        tuple(action.option_strings)
        for action in parser._actions
        if action.option_strings and not EVERYWHERE & set(action.option_strings) and not is_not_yet(action)
    ]


DAEMON = [
    *commands(supervisor.tools.ctl.main.arguments(), "tnwgdctl"),
    *commands(supervisor.tools.init.main.arguments(), "tnwgd init"),
    *commands(supervisor.tools.top.main.arguments(), "tnwgd-top"),
    ("tnwgd", supervisor.start.command_line.arguments()),
    ("lbmrd", supervisor.resolvers.lbmrd.arguments()),
    ("umsrs", supervisor.resolvers.umsrs.arguments()),
]


def is_told(text: str, spelling: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(spelling)}(?![\w-])", text) is not None


@pytest.mark.parametrize(("command", "parser"), DAEMON, ids=[command for command, _ in DAEMON])
def test_every_command_and_option_of_the_daemon_is_explained(command: str, parser: argparse.ArgumentParser) -> None:
    guide = GUIDE_OF[command]
    text = read(guide)
    assert is_told(text, command)
    common = OF_ALL if command.startswith("tnwgdctl ") else set()
    missing = [
        names
        for names in options(parser)
        if not any(is_told(common_options() if name in common else text, name) for name in names)
    ]
    assert not missing, f"{command}: not in docs/{guide}"


def test_every_command_of_the_daemon_is_in_one_guide() -> None:
    assert sorted(GUIDE_OF) == sorted(command for command, _ in DAEMON)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_every_option_of_the_tools_is_explained(tool: object) -> None:
    parser = tool.arguments()  # type: ignore[attr-defined]  # a module with that function
    text = read("umdump.md" if tool is umdump else "tools.md")
    assert not [names for names in options(parser) if not any(is_told(text, name) for name in names)]


def section(guide: str, head: str) -> str:
    return read(guide).partition(f"\n## {head}\n")[2].partition("\n## ")[0]


def common_options() -> str:
    return section("run.md", "tnwgdctl")


def rows(guide: str, heading: str, head: str) -> dict[str, str]:
    """First and last column of the table with that head below a heading of a guide."""
    table = section(guide, heading).partition(f"\n| {head}")[2].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {line[0]: line[-1] for line in cells}


def test_exit_statuses() -> None:
    assert list(rows("run.md", "Start and stop", "exit status |")) == [
        str(parent.EXIT_OK), str(parent.EXIT_NOT_STARTED), "2", str(parent.EXIT_KILLED), "143, 130 in a shell",
    ]  # fmt: skip
    of_ctl = {ctl_output.EXIT_OK, ctl_output.EXIT_FAILED, 2, ctl_output.EXIT_UNREACHABLE, ctl_output.EXIT_INTERRUPTED}
    assert set(map(int, rows("run.md", "tnwgdctl", "exit status of `tnwgdctl`"))) == of_ctl
    assert f"with {ctl_reload.EXIT_DIFFERENT} when something does" in section("change.md", "The whole file")
    of_init = {init.EXIT_OK, init.EXIT_FAILED, 2, init.EXIT_INTERRUPTED}
    starter = rows("run.md", "Starter configuration and shell completion", "exit status of `tnwgd init`")
    assert set(map(int, starter)) == of_init
    of_doctor = rows("run.md", "Doctor and lint", "exit status of `tnwgdctl doctor`")
    assert set(map(int, of_doctor)) == of_ctl - {ctl_output.EXIT_INTERRUPTED}


def test_states_of_portals() -> None:
    told = [name for cell in rows("watch.md", "What runs", "state |") for name in re.findall(r"`(\w+)`", cell)]
    assert set(told) == {state.value for state in WorkerState} - {WorkerState.REMOVED.value, WorkerState.ENDED.value}


def test_reload_classes() -> None:
    assert list(rows("change.md", "The whole file", "class |")) == [f"`{one.value}`" for one in ReloadClass]


def test_reasons_of_drops() -> None:
    assert {cell.strip("`") for cell in rows("watch.md", "Counters", "reason |")} == set(DROP_SLOTS)


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("*.md")))
def test_whole_files_in_the_guides_load(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "configuration.md":
        return  # its examples are those of the tables, see tests/config/report/test_reference.py
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(re.findall(r"```xml\n(.*?)```", read(name), re.DOTALL), start=1):
        if "<tnw-gateway" not in text:
            continue
        for nth, um_file in enumerate(re.findall(r"<lbm-config>(.*?)</lbm-config>", text), start=1):
            (tmp_path / um_file).write_text(f"context resolver_multicast_address 239.1.1.{nth}\n")
        warnings: list[str] = []
        parse_dro(text.encode(), f"{name} {number}", warn=warnings.append, lookup=FakeLookup(), environ={})
        assert warnings == []


def test_every_abbreviation_of_the_field_is_in_the_glossary() -> None:
    glossary = read("concepts.md").partition("\n## Glossary\n")[2]
    entries = set(re.findall(r"[A-Z]{3,}", " ".join(re.findall(r"^\| (.*?) \|", glossary, re.MULTILINE))))
    unknown = {}
    for path in DOCS.glob("*.md"):
        prose = re.sub(
            r"```.*?```|^    .*?$|`[^`]*`|\]\([^)]*\)|<http[^>]*>",
            " ",
            path.read_text(),
            flags=re.DOTALL | re.MULTILINE,
        )
        if words := set(re.findall(r"(?<![\w-])[A-Z]{3,}(?![\w-])", prose)) - entries - KNOWN_TO_ALL - PLACEHOLDERS:
            unknown[path.name] = words
    assert unknown == {}


def anchors(path: Path) -> set[str]:
    """Those of its headings, as the site and GitHub make them of plain words."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in DOCS.glob("*.md"))])
def test_links_between_the_guides_lead_somewhere(name: str) -> None:
    path = DOCS.parent / name
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", path.read_text()):
        document = path.parent / target if target else path
        assert document.exists(), target
        assert not anchor or anchor in anchors(document), f"{target}#{anchor}"
