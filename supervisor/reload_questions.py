"""Questions about configurations that a running DRO answers: `diff` and `explain`. Each is worked out in a child."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from dro.clock import s
from dro.config.model import DroConfig
from dro.errors import RefusedError
from supervisor.admin import Arguments, Reply
from supervisor.child import Failed
from supervisor.explain import ExplainRecord, explain
from supervisor.explain_question import question_of
from supervisor.parent import Parent
from supervisor.records import Record, to_json
from supervisor.reload_hands import situation_of
from supervisor.reload_records import plan_record
from supervisor.reload_trial import Trial, compare

ANSWER_LIMIT_NS: Final = s(60)  # files may come from a network
MAX_QUESTIONS: Final = 4  # at once


class Questions:
    """Serves `diff` and `explain`."""

    def __init__(self, parent: Parent[DroConfig]) -> None:
        self._parent = parent
        self._path = os.path.abspath(parent.config.file)
        self._under_way = 0
        parent.admin.add("diff", self._on_diff, looks=True)
        parent.admin.add("explain", self._on_explain, looks=True)

    def _on_diff(self, arguments: Arguments, reply: Reply) -> None:
        """What a reload of a file would do; without a file, of the own one."""
        path = arguments.text("file", self._path)
        arguments.done()
        situation = situation_of(self._parent)

        def told(trial: object) -> Record:
            assert isinstance(trial, Trial)
            return plan_record(path, trial.plan, trial.warnings)

        self._answer(lambda: compare(situation, path), told, reply, "reading the file")

    def _on_explain(self, arguments: Arguments, reply: Reply) -> None:
        question = question_of(arguments)
        config = situation_of(self._parent).running
        states = {worker.name: worker.state for worker in self._parent.worker_status() if worker.state != "ready"}

        def told(answer: object) -> Record:
            assert isinstance(answer, ExplainRecord)
            return answer

        self._answer(lambda: explain(config, question, states), told, reply, "working out the answer")

    def _answer(self, work: Callable[[], object], told: Callable[[object], Record], reply: Reply, what: str) -> None:
        """Raises: RefusedError."""
        if self._under_way >= MAX_QUESTIONS:
            raise RefusedError(f"{MAX_QUESTIONS} questions are worked on already", remedy="try again in a moment")
        self._under_way += 1

        def done(result: object | Failed) -> None:
            self._under_way -= 1
            if isinstance(result, Failed):
                reply.fail(result.error())
            else:
                reply.ok(to_json(told(result)))

        self._parent.work_aside(work, done, limit_ns=ANSWER_LIMIT_NS, what=what)
