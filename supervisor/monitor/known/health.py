"""Whether a DRO should be restarted, and whether it forwards all that it is configured for."""

from __future__ import annotations

from supervisor.admin.status import WORKING
from supervisor.samples.watch import KnownDros


def unhealthy(known: KnownDros) -> list[str]:
    """Say why the DRO should be restarted."""
    if known.is_fresh:
        return []
    since = f"for {known.age_s:.0f} s" if known.asked_s >= 0 else "yet"
    return [f"the parent has not answered {since}: {known.problem}"]


def unready(known: KnownDros) -> list[str]:
    """Say why the DRO does not forward, or not all that it is configured for."""
    status, problems = known.status, unhealthy(known)
    if status.is_stopping:
        problems.append("the DRO is stopping")
    for worker in status.workers:
        if worker.role != "monitor" and worker.state not in WORKING:
            problems.append(f"{worker.name} is {worker.state}")
        elif worker.trouble:
            problems.append(f"{worker.name} is {worker.state}: {worker.trouble}")
    if not problems and not status.is_running:
        problems.append("the DRO is starting")
    return problems
