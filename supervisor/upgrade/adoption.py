"""From a running DRO to its description, and from a description to a parent that has adopted the DRO."""

from __future__ import annotations

import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dro.bus.messages import Ready, Role, RoutesCalculated
from dro.errors import RefusedError
from dro.log import setup as logs
from dro.log.handler import counted
from supervisor.admin.server import SOCKET_NAME
from supervisor.host.pidfile import PidFile
from supervisor.host.run_dirs import RunDirs
from supervisor.parent.parent import Parent
from supervisor.parent.workers import Worker, WorkerSpec, WorkerState, removed_spec
from supervisor.upgrade.description import (
    VERSION,
    Description,
    EstateRecord,
    FormerRecord,
    HistoryRecord,
    HostRecord,
    KeptSocketRecord,
    LifeRecord,
    LogSettingsRecord,
    ProgramRecord,
    WorkerRecord,
)
from supervisor.upgrade.layouts import layouts


def describe(
    parent: Parent[Any],
    program: ProgramRecord,
    history: HistoryRecord | None,
    number: int,
    *,
    back_to: ProgramRecord | None = None,
    failure: str = "",
    remedy: str = "",
    former: FormerRecord | None = None,
) -> Description:
    """Describe the DRO as it is now, for the program with that number."""
    routes = parent.routes
    return Description(
        version=VERSION,
        layouts=layouts(),
        program=program,
        number=number,
        back_to=back_to,
        failure=failure,
        remedy=remedy,
        name=parent.name,
        node_id=str(parent.node_id),
        start_s=parent.start_s,
        began_ns=parent.began_ns,
        config_file=parent.configuration.current.file,
        loaded_s=parent.configuration.loaded_s,
        routes_version=routes.version if routes is not None else -1,
        routes=routes.routes if routes is not None else -1,
        incarnations=parent.processes.incarnations,
        config_serial=parent.rollout.serial,
        host=_host(parent),
        workers=tuple(_worker(parent, worker) for worker in parent.workers.ever()),
        log=LogSettingsRecord(**asdict(logs.settings())),
        history=history,
        logged=dict(counted),
        former=former,
    )


def _host(parent: Parent[Any]) -> HostRecord:
    dirs, pid_file = parent.run_dirs, parent.resources.pid_file
    return HostRecord(
        run=str(dirs.run),
        shm=str(dirs.shm),
        keeps_run=dirs.keeps_run,
        lock_fds=tuple(_open_files(dirs.locks)),
        claim_fds=tuple(parent.resources.locks.filenos()),
        pid_file=str(pid_file.path) if pid_file is not None else "",
        pid_fd=pid_file.fileno() if pid_file is not None else -1,
        admin_fd=parent.admin.fileno(),
    )


def _open_files(paths: tuple[Path, ...]) -> list[int]:
    """List the descriptors that this process has of these files."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.fstat(int(name))
            if any(os.path.samestat(status, path.stat()) for path in paths if path.exists()):
                found.append(int(name))
        except OSError:  # that of the list itself is gone
            continue
    return found


def _worker(parent: Parent[Any], worker: Worker) -> WorkerRecord:
    life = estate = None
    if worker.is_alive and worker.control is not None:
        ready = worker.ready or Ready(0, "", "")
        life = LifeRecord(
            pid=worker.pid,
            pidfd=worker.pidfd,
            control_fd=worker.control.fileno(),
            is_ready=worker.ready is not None,
            ring=ready.ring,
            ctl=ready.ctl,
            goes_on=ready.goes_on,
        )
    if worker.state is not WorkerState.REMOVED:
        found = parent.processes.estate_of(worker)
        kept = tuple(KeptSocketRecord(name.hex(), fd) for name, fd in found.sockets.by_name.items())
        estate = EstateRecord(found.memory.fileno(), kept, found.sockets.end_fd, found.succession.record())
    return WorkerRecord(
        name=worker.name,
        role=int(worker.spec.role),
        state=worker.state.value,
        incarnation=worker.incarnation,
        is_announced=worker.is_announced,
        was_ready=worker.was_ready,
        starts=worker.starts,
        started_ns=worker.started_ns,
        last_death=worker.last_death,
        trouble=worker.trouble,
        program=worker.program,
        version=worker.version,
        life=life,
        estate=estate,
    )


def check_workers(description: Description, specs: list[WorkerSpec]) -> None:
    """Check that the configuration still has all workers, and no more. Raises: RefusedError."""
    there = {(w.name, w.role) for w in description.workers if w.state != WorkerState.REMOVED.value}
    if others := there ^ {(spec.name, int(spec.role)) for spec in specs}:
        what = f"by its configuration it has other processes: {', '.join(sorted(name for name, _ in others))}"
        raise RefusedError(what, remedy="reload first")


def adopt(parent: Parent[Any], description: Description) -> None:
    """Have the parent, which does not run yet, be that of the DRO. Raises: DroError, OSError."""
    host, processes = description.host, parent.processes
    run_dirs = RunDirs(Path(host.run), Path(host.shm), host.keeps_run)
    processes.run_dirs = parent.run_dirs = run_dirs
    pid_file = PidFile(Path(host.pid_file), host.pid_fd) if host.pid_fd >= 0 else None
    parent.resources.adopt(run_dirs, pid_file, host.claim_fds)
    parent.admin.adopt(run_dirs.run / SOCKET_NAME, host.admin_fd)
    processes.incarnations = description.incarnations
    parent.rollout.serial = description.config_serial
    parent.configuration.loaded_s = description.loaded_s
    if description.routes_version >= 0:
        parent.routes = RoutesCalculated(description.routes_version, description.routes)
    counted.update(description.logged)
    specs = {worker.name: worker.spec for worker in parent.workers}
    workers = [_adopted(record, index, specs) for index, record in enumerate(description.workers)]
    parent.workers.adopt(workers)
    for worker, record in zip(workers, description.workers, strict=True):
        worker.config_serial = description.config_serial
        if (estate := record.estate) is not None:
            processes.prepare(worker, estate.memory_fd)
            made = processes.estate_of(worker)
            made.succession.adopt(estate.succession, worker.spec.part)
            made.sockets.adopt({bytes.fromhex(kept.name): kept.fd for kept in estate.sockets}, estate.end_fd)
        if (life := record.life) is not None:
            control = socket.socket(fileno=life.control_fd)
            control.setblocking(False)
            processes.watch(worker, control)


def _adopted(record: WorkerRecord, index: int, specs: dict[str, WorkerSpec]) -> Worker:
    state = WorkerState(record.state)
    is_gone = state is WorkerState.REMOVED
    worker = Worker(removed_spec(record.name, Role(record.role)) if is_gone else specs[record.name], index, state)
    worker.incarnation, worker.starts, worker.started_ns = record.incarnation, record.starts, record.started_ns
    worker.is_announced, worker.was_ready = record.is_announced, record.was_ready
    worker.last_death, worker.trouble = record.last_death, record.trouble
    worker.program, worker.version = record.program, record.version
    worker.backoff.on_start(record.started_ns)
    if (life := record.life) is not None:
        worker.pid, worker.pidfd = life.pid, life.pidfd
        if life.is_ready:
            worker.ready = Ready(record.incarnation, life.ring, life.ctl, life.goes_on)
    return worker
