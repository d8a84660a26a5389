"""Queries about configurations to a running DRO: `config`, `diff` and `explain`. Each is answered in a child."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from dro.bus.codec import JsonObject, Record
from dro.clock import s
from dro.config.dro_xml.model import DroConfig
from dro.config.report.effective import effective_config
from dro.errors import RefusedError
from supervisor.admin.server import Arguments, Reply
from supervisor.admin.status import ConfigRecord
from supervisor.commands.explain import explain, query_of
from supervisor.parent.forked_task import Failed
from supervisor.parent.parent import Parent
from supervisor.reload.records import PlanRecord, plan_record
from supervisor.reload.trial import compare, situation_of

ANSWER_LIMIT_NS: Final = s(60)  # files may come from a network
MAX_QUERIES: Final = 4  # at once


class AdminQueries:
    """Serves `config`, `diff` and `explain`."""

    def __init__(self, parent: Parent[DroConfig]) -> None:
        self._parent = parent
        self._path = parent.configuration.current.file
        self._under_way = 0
        parent.admin.add("config", self._on_config, looks=True)
        parent.admin.add("diff", self._on_diff, looks=True)
        parent.admin.add("explain", self._on_explain, looks=True)

    def _on_config(self, arguments: Arguments, reply: Reply) -> None:
        with_defaults = arguments.flag("defaults")
        arguments.done()
        config = situation_of(self._parent).running
        loaded = round(self._parent.configuration.loaded_s, 3)

        def record() -> ConfigRecord:
            return ConfigRecord(self._path, loaded, effective_config(config, with_defaults=with_defaults))

        self._answer(record, reply, "writing the configuration")

    def _on_diff(self, arguments: Arguments, reply: Reply) -> None:
        """Find what a reload of a file would do; without a file, of the own one."""
        path = arguments.text("file", self._path)
        arguments.done()
        situation = situation_of(self._parent)

        def record() -> PlanRecord:
            trial = compare(situation, path)
            return plan_record(path, trial.plan, trial.warnings)

        self._answer(record, reply, "reading the file")

    def _on_explain(self, arguments: Arguments, reply: Reply) -> None:
        question = query_of(arguments)
        config = situation_of(self._parent).running
        states = {worker.name: worker.state for worker in self._parent.worker_status() if worker.state != "ready"}
        self._answer(lambda: explain(config, question, states), reply, "working out the answer")

    def _answer(self, work: Callable[[], Record], reply: Reply, what: str) -> None:
        """Do the work in a process of its own, and answer with the result. Raises: RefusedError."""
        if self._under_way >= MAX_QUERIES:
            raise RefusedError(f"{MAX_QUERIES} questions are worked on already", remedy="try again in a moment")
        self._under_way += 1

        def done(result: JsonObject | Failed) -> None:
            self._under_way -= 1
            if isinstance(result, Failed):
                reply.fail(result.error())
            else:
                reply.ok(result)

        self._parent.run_forked(lambda: asdict(work()), done, limit_ns=ANSWER_LIMIT_NS, what=what)
