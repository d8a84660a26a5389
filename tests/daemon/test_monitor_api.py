"""The admin API of a real DRO: its OpenAPI document holds, and orders need a token."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

from supervisor.monitor.answers.topics import TOPICS_VARIABLE
from supervisor.monitor.api import OPENAPI, PAGED
from supervisor.monitor.orders import TOKENS_VARIABLE
from tests.daemon.test_monitor import fetch, monitored
from tests.rigs.effort import IS_LONG
from tests.rigs.site import Site

pytestmark = pytest.mark.slow
EXAMPLES: Final = 25 if IS_LONG else 5
STREAM: Final = "/v1/events/stream"  # has no end
STRANGERS: Final = 40
TOKENS: Final = {"viewer": "v" * 16, "operator": "o" * 20, "admin": "a" * 24}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.touch(0o600)
    path.write_text("# who may\n" + "".join(f"{role} {role}-1 {token}\n" for role, token in TOKENS.items()))
    return path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, tokens: Path) -> Iterator[Site]:
    environment = {TOKENS_VARIABLE: str(tokens), TOPICS_VARIABLE: "2"}
    with monitored(tmp_path_factory.mktemp("site"), 2, environment) as made:
        yield made


def test_the_api_does_what_its_document_says(site: Site) -> None:
    document = schemathesis.openapi.from_url(f"http://{site.web}{OPENAPI}")
    operations = [found.ok() for found in document.exclude(path=STREAM).get_all_operations() if isinstance(found, Ok)]
    assert len(operations) > 20
    for operation in operations:

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def holds(case: Any) -> None:  # noqa: ANN401 - of the library
            case.call_and_validate()

        holds()


def post(site: Site, path: str, token: str = "") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(site.web, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")


def get(site: Site, path: str) -> Any:  # noqa: ANN401 - any JSON
    status, body = fetch(site, path)
    assert status == 200, (path, body)
    return json.loads(body)


def state(site: Site, name: str) -> str:
    found: str = get(site, f"/v1/portals/{name}")["state"]
    return found


def test_orders_need_a_token_with_a_role_and_are_logged(site: Site, tokens: Path) -> None:
    assert post(site, "/v1/portals/P2/pause")[0] == 401
    assert post(site, "/v1/portals/P2/pause", "x" * 16)[0] == 401
    status, problem = post(site, "/v1/portals/P2/pause", TOKENS["viewer"])
    assert (status, problem) == (
        403, {"what": "viewer-1 is viewer and may not do this", "remedy": "it needs the role operator"},
    )  # fmt: skip
    assert post(site, "/v1/reload", TOKENS["operator"])[0] == 403
    assert post(site, "/v1/portals/P2/pause", TOKENS["operator"])[1]["state"] == "paused"
    site.wait(lambda: state(site, "P2") == "paused", "the pause")
    assert post(site, "/v1/portals/P2/resume", TOKENS["admin"])[1]["state"] == "ready"
    assert post(site, "/v1/portals/P2/restart?clean=true", TOKENS["operator"])[1]["state"] == "ready"
    assert post(site, "/v1/portals/P2/pause?clean=true", TOKENS["operator"])[0] == 422
    assert post(site, "/v1/recalculation", TOKENS["operator"]) == (204, {})
    status, problem = post(site, "/v1/portals/nowhere/pause", TOKENS["operator"])
    assert status == 422
    assert "nowhere" in problem["what"]
    assert post(site, "/v1/reload", TOKENS["admin"])[0] == 200
    tokens.chmod(0o640)
    assert post(site, "/v1/recalculation", TOKENS["operator"]) == (
        503, {"what": f"no token can be checked: others have access to {tokens}", "remedy": f"chmod 600 {tokens}"},
    )  # fmt: skip
    tokens.chmod(0o600)

    def told() -> list[tuple[str, str, str]]:
        rows = get(site, "/v1/events?category=other&limit=1000")["rows"]
        orders = [row["fields"] for row in rows if row["name"] == "MONITOR_ORDER"]
        return [(row["order"], row["who"], row["result"]) for row in orders if not row["order"].endswith("nowhere")]

    site.wait(lambda: ("reload", "admin-1", "done") in told(), "the log")
    assert any((who, result) == ("", "no valid token") for _, who, result in told()), "not each one of them"
    assert ("portal pause P2", "operator-1", "done") in told()
    assert ("portal restart P2 --clean", "operator-1", "done") in told()
    assert not any(token in line for token in TOKENS.values() for line in site.log.splitlines())


def test_who_has_no_token_cannot_fill_the_log(site: Site) -> None:
    for number in range(STRANGERS):
        assert post(site, f"/v1/portals/stranger{number}{'x' * 3000}/pause")[0] == 401
    post(site, "/v1/portals/acquaintance/pause", TOKENS["viewer"])
    site.wait(lambda: "acquaintance" in site.log, "the log")
    lines = [line for line in site.log.splitlines() if "stranger" in line]
    assert len(lines) < STRANGERS / 2
    assert max(map(len, lines), default=0) < 1000


def test_lists_are_paged_and_sorted(site: Site) -> None:
    whole = get(site, "/v1/routes?sort=from_domain")
    assert [row["from_domain"] for row in whole["rows"]] == [1, 2]
    assert get(site, "/v1/routes?sort=-from_domain&limit=1")["rows"] == whole["rows"][1:]
    second = get(site, "/v1/routes?sort=from_domain&limit=1&offset=1")
    assert (second["rows"], second["total"], second["offset"]) == (whole["rows"][1:], 2, 1)
    for what in PAGED:
        site.wait(lambda what=what: get(site, f"/v1/{what}")["problems"] == [], what)  # type: ignore[misc]
    status, body = fetch(site, "/v1/topics?portal=P9")
    assert (status, json.loads(body)) == (404, {"what": "this DRO has no portal 'P9'", "remedy": "there are P1, P2"})


def test_a_paused_portal_is_missed_in_a_list_that_says_so(site: Site) -> None:
    post(site, "/v1/portals/P2/pause", TOKENS["operator"])
    site.wait(lambda: get(site, "/v1/topics")["problems"] == ["P2 is paused"], "the list")
    post(site, "/v1/portals/P2/resume", TOKENS["operator"])
    site.wait(lambda: get(site, "/v1/topics")["problems"] == [], "the list")


def test_the_configuration_hides_secrets_and_names_origins(site: Site) -> None:
    told = get(site, "/v1/config")
    assert f"<web-monitor>{site.web}</web-monitor>" in told["text"]
    assert "trd1.cfg:" in told["text"]
    assert len(get(site, "/v1/config?defaults=true")["text"]) > len(told["text"])


def test_metrics_of_topics_have_a_cap(site: Site) -> None:
    status, body = fetch(site, "/metrics/topics")
    assert status == 200
    assert f'dro_topics_left_out{{dro="{site.name}"}} 0.0' in body.decode().splitlines()


def test_memory_and_processes_are_told(site: Site) -> None:
    rows = {row["worker"]: row for row in get(site, "/v1/memory")}
    assert rows.keys() == {"route-manager", "P1", "P2", "monitor"}
    for row in rows.values():
        assert row["uordblks"] + row["fordblks"] == row["arena"]
        assert row["uordblks"] > 1 << 20
    workers = {row["worker"]["name"]: row for row in get(site, "/v1/workers")}
    assert workers["P1"]["resident_bytes"] > 1 << 20
    assert workers["P1"]["worker"]["pid"] in site.workers().values()


def test_a_portal_alone_may_be_asked_for_in_every_list(site: Site) -> None:
    site.wait(lambda: {row["portal"] for row in get(site, "/v1/topology")["rows"]} == {"P1", "P2"}, "the topology")
    for what in PAGED:
        named = [{row.get(name) for name in ("portal", "ingress", "egress")} for row in
                 get(site, f"/v1/{what}?portal=P2")["rows"]]  # fmt: skip
        assert all("P2" in names for names in named), what
    assert len(get(site, "/v1/topology?portal=P2")["rows"]) == 1
    rows = get(site, "/lists/events.json?portal=P2")["rows"]
    assert {row["worker"] for row in rows} == {"P2"}
    assert {row["worker"] for row in get(site, "/lists/events.json")["rows"]} > {"P2"}
