"""The description of a DRO that one program leaves to the next, and what the next one refuses of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from typing import Any

import pytest

from dro.bus.messages import Role
from dro.errors import RefusedError
from supervisor.parent.succession import SuccessionRecord
from supervisor.parent.workers import WorkerSpec
from supervisor.upgrade.adoption import check_workers
from supervisor.upgrade.description import (
    VERSION,
    Description,
    EstateRecord,
    HistoryRecord,
    HostRecord,
    KeptSocketRecord,
    LifeRecord,
    LogSettingsRecord,
    ProgramRecord,
    WorkerRecord,
    check_open,
    let_through,
    read,
    write,
)
from supervisor.upgrade.layouts import differing, layouts


class Descriptors:
    """Open descriptors of nothing."""

    def __init__(self) -> None:
        self.open: list[int] = []

    def __call__(self) -> int:
        self.open.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        return self.open[-1]

    def close(self) -> None:
        for fd in self.open:
            os.close(fd)


@pytest.fixture
def made() -> Iterator[Descriptors]:
    descriptors = Descriptors()
    yield descriptors
    descriptors.close()


def describe(fd: Descriptors) -> Description:
    """A DRO with one portal and a place of one that was removed; nothing has its default."""
    program = ProgramRecord(2, "1.0", ("/usr/bin/python3", "-m", "supervisor.main"), {"A": "B"})
    estate = EstateRecord(fd(), (KeptSocketRecord("6162", fd()),), fd(), SuccessionRecord("why", True, 5, True))
    life = LifeRecord(77, fd(), fd(), True, "/ring", "ipc://ctl", True)
    portal = WorkerRecord(
        "P1", int(Role.ENDPOINT), "ready", 4, True, True, 3, 99, "killed", "trouble", 2, "1.0", life, estate
    )
    gone = replace(portal, name="P2", state="removed", life=None, estate=None)
    host = HostRecord("/run/x", "/dev/shm/x", True, (fd(), fd()), (fd(),), "/run/pid", fd(), fd())
    log = LogSettingsRecord("file", "/log", "daily", 10, 20, True, True, 2, "/dev/log", "tag")
    return Description(
        VERSION, layouts(), program, 3, replace(program, number=1), "it failed", "mend it", "EAST", "1" * 19, 1.5, 7,
        "/etc/east.xml", 2.5, 8, 9, 10, 11, host, (portal, gone), log, HistoryRecord("/history", 0.5), {"error": 1},
    )  # fmt: skip


def read_of(value: object) -> Description:
    fd = os.memfd_create("test")
    try:
        os.write(fd, value if isinstance(value, bytes) else json.dumps(value).encode())
        return read(fd)
    finally:
        os.close(fd)


def test_what_is_written_is_read(made: Descriptors) -> None:
    description = describe(made)
    fd = write(description)
    made.open.append(fd)
    assert not os.get_inheritable(fd)
    assert read(fd) == description
    assert read(fd) == description, "as often as it is wanted"


def places(record: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:  # noqa: ANN401
    """Every field in the description that has no default."""
    for field in fields(record):
        value, here = getattr(record, field.name), (*path, field.name)
        if field.default is MISSING and field.default_factory is MISSING:
            yield here
        if is_dataclass(value):
            yield from places(value, here)
        elif isinstance(value, tuple) and is_dataclass(value[0]):
            yield from places(value[0], (*here, 0))


def test_no_field_may_be_missing_or_of_another_type(made: Descriptors) -> None:
    description = describe(made)
    found = list(places(description))
    assert ("host", "admin_fd") in found
    assert ("workers", 0, "estate", "sockets", 0, "fd") in found
    for path in found:
        for change in ("missing", "strange"):
            value: Any = json.loads(json.dumps(asdict(description)))
            at = value
            for step in path[:-1]:
                at = at[step]
            if change == "missing":
                del at[path[-1]]
            else:
                at[path[-1]] = ["strange", 1.25]
            with pytest.raises(RefusedError, match=r"of another layout|has layout"):
                read_of(value)


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"[" * 100_000, b"\xff"])
def test_what_is_no_description_is_refused(value: bytes) -> None:
    with pytest.raises(RefusedError):
        read_of(value)


def test_another_version_is_refused(made: Descriptors) -> None:
    with pytest.raises(RefusedError, match=f"has layout {VERSION + 1}, not {VERSION}") as error:
        read_of(asdict(replace(describe(made), version=VERSION + 1)))
    assert "docs/upgrade.md" in error.value.remedy


def test_a_field_that_a_later_version_adds_is_ignored(made: Descriptors) -> None:
    description = describe(made)
    assert read_of(asdict(description) | {"more": 1}) == description


def test_every_descriptor_stays_open_over_an_exec_and_none_may_be_missing(made: Descriptors) -> None:
    description = describe(made)
    assert sorted(fd for fd, _ in description.descriptors()) == sorted(made.open)
    check_open(description)
    let_through(description, is_let=True)
    assert all(map(os.get_inheritable, made.open))
    let_through(description, is_let=False)
    assert not any(map(os.get_inheritable, made.open))
    for fd, what in list(description.descriptors()):
        os.close(fd)
        with pytest.raises(RefusedError, match=f"{what} is missing: descriptor {fd}: Bad file descriptor"):
            check_open(description)
        again = os.open(os.devnull, os.O_RDONLY)  # the lowest free number is the one that was closed, or is moved there
        if again != fd:
            os.dup2(again, fd)
            os.close(again)


def test_the_configuration_has_to_have_the_same_processes(made: Descriptors) -> None:
    def spec(name: str, role: Role = Role.ENDPOINT) -> WorkerSpec:
        return WorkerSpec(name, role, lambda _: None)

    description = describe(made)
    check_workers(description, [spec("P1")])
    for specs in ([], [spec("P1"), spec("P2")], [spec("P1", Role.PEER)]):
        with pytest.raises(RefusedError, match=r"has other processes: P[12]"):
            check_workers(description, specs)


def test_programs_differ_by_what_one_has_and_the_other_has_not() -> None:
    ours = layouts()
    assert differing(ours, layouts()) == []
    theirs = {**ours, "rings": "another", "leaves": "1"}
    del theirs["kept rows"]
    assert differing(ours, theirs) == differing(theirs, ours) == ["kept rows", "leaves", "rings"]
