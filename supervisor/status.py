"""What `tnwgdctl status` and `portals` tell: the records that travel over the admin socket."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One process of the DRO; one that is not running has pid 0."""

    name: str
    role: str  # route manager, endpoint, ...
    index: int
    state: str
    pid: int
    incarnation: int
    restarts: int  # lives after the first, whatever ended the earlier ones
    uptime_s: float  # of this life; 0 when it is not running
    last_death: str  # how its last life ended; empty when it still has its first
    operation: str = ""  # what an operator has ordered and is not done


@dataclass(frozen=True, slots=True)
class DroStatus:
    """The DRO as a whole."""

    name: str
    version: str
    node_id: str  # 16 hexadecimal digits
    pid: int
    uptime_s: float
    config_file: str
    config_loaded: float  # seconds since the epoch
    is_running: bool  # every worker was ready at least once, and the DRO is not stopping
    pending: tuple[str, ...] = ()  # changed elements that wait for a restart of the daemon
    run_dir: str = ""
    workers: tuple[WorkerStatus, ...] = field(default=())
