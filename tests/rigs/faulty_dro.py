"""`tnwgd` whose reloads go wrong in a way that `DRO_FAULT` names: what no file alone brings about.

unchecked   nothing is tried before a plan is carried out
hang        it never ends, and is given half a second
slow        it takes a while, and leaves a file `trying` beside the configuration as long as it does
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from dro.clock import ms
from supervisor.main import main
from supervisor.reload import requests as reload
from supervisor.reload import trial as reload_trial
from supervisor.reload.trial import Situation, Trial, try_out


def inject(fault: str) -> None:
    def hang(situation: Situation, path: str) -> Trial:
        time.sleep(600)
        return try_out(situation, path)

    def slow(situation: Situation, path: str) -> Trial:
        mark = Path(path).with_name("trying")
        mark.touch()
        time.sleep(0.7)
        mark.unlink()
        return try_out(situation, path)

    match fault:
        case "unchecked":
            vars(reload_trial)["check_plan"] = lambda *_: None
        case "hang":
            vars(reload).update(try_out=hang, TRIAL_LIMIT_NS=ms(500))
        case "slow":
            vars(reload)["try_out"] = slow


if __name__ == "__main__":
    inject(os.environ["DRO_FAULT"])
    sys.exit(main())
