"""What the client library makes of its configuration before anything is sent."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from dro.um.async_api import Context
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config, object_options

pytestmark = pytest.mark.usefixtures("network")


def test_encryption_that_is_asked_for_never_becomes_plain_text(tmp_path: Path, tcp_config: Config) -> None:
    path = tmp_path / "tls.cfg"
    path.write_text("source transport tcp\ncontext use_tls maybe\n")
    with pytest.raises(ConfigError, match=rf"{path}:2: context use_tls: "):
        Config.load(path)
    with BlockingContext(tcp_config) as context, pytest.raises(ConfigError, match="use_tls: it protects all conn"):
        context.source("t", use_tls=1)


def test_a_later_file_may_take_it_back(tmp_path: Path) -> None:
    (tmp_path / "a.cfg").write_text("context use_tls 1\n")
    (tmp_path / "b.cfg").write_text("context use_tls 0\n")
    assert not Config.load(tmp_path / "a.cfg", tmp_path / "b.cfg").options.get_bool("context", "use_tls")


def test_options_without_effect_are_named_when_they_are_read(
    tmp_path: Path, tcp_config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "idle.cfg"
    path.write_text("context mim_sqn_window_increment 16384\ncontext fd_management_type epoll\n")
    with caplog.at_level(logging.INFO):
        Config.load(path).with_("source", "transport", "tcp")
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, f"1 UM options without effect yet: context mim_sqn_window_increment ({path}:1)"),
        (logging.INFO, f"1 UM options without effect here: context fd_management_type ({path}:2)"),
    ]


def test_hot_failover_and_hotlinks_exclude_each_other(tmp_path: Path, tcp_config: Config) -> None:
    """DRO guide 3.6.5; in one file, and of a receiver in a context."""
    why = "hot failover cannot be combined with use_hotlink; set one of both to 0"
    path = tmp_path / "both.cfg"
    path.write_text("receiver use_hotlink 1\nwildcard_receiver hf_receiver 1\n")
    with pytest.raises(ConfigError, match=f"{path}:2: wildcard_receiver hf_receiver: {why}"):
        BlockingContext(Config.load(path))
    with BlockingContext(tcp_config.with_("receiver", "use_hotlink", 1)) as context:
        with pytest.raises(ConfigError, match=f"wildcard_receiver hf_receiver: {why}"):
            context.wildcard_receiver("^t", hf_receiver=1)
        context.wildcard_receiver("^t")
    with BlockingContext(tcp_config) as context:
        context.wildcard_receiver("^t", hf_receiver=1)


def test_a_transport_that_is_not_there_is_a_mistake_of_the_configuration(tcp_config: Config) -> None:
    config = tcp_config.with_("source", "transport", "lbtrdma")
    with BlockingContext(config) as context:
        context.receiver("t")
        with pytest.raises(ConfigError, match="source transport: lbtrdma is not supported yet; use tcp"):
            context.source("t")
        context.source("t", transport="tcp")


XML = """<um-configuration version="1.0"><applications><application name="desk"><contexts><context>
<options type="context"><option name="resolver_unicast_daemon" default-value="{daemon}"/></options>
<sources><topic topicname="late"><options type="source">
<option name="ume_late_join" default-value="1"/></options></topic>
<topic topicname="no" rule="deny"/>
<topic topicname="rm"><options type="source"><option name="transport" default-value="lbtrm"/></options></topic>
</sources><receivers><topic topicname="no" rule="deny"/></receivers></context></contexts></application></applications>
</um-configuration>"""


def test_an_xml_file_holds_for_the_objects_that_it_names(
    tmp_path: Path, tcp_config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "um.xml"
    path.write_text(XML.format(daemon="0.0.0.0:0"))
    config = replace(Config.load(path, application="desk"), options=without_transport(tcp_config.options))
    caplog.set_level(logging.INFO)
    with BlockingContext(config) as context:
        assert context.source("plain").source_string.startswith("TCP:")
        assert context.source("rm").source_string.startswith("LBTRM:")
        assert context.source("rm", transport="tcp").source_string.startswith("TCP:")
        assert "ume_late_join" not in caplog.text
        context.source("late")
        assert f"source ume_late_join ({path}:4)" in caplog.text
        for open_ in (context.source, context.receiver):
            with pytest.raises(ConfigError, match="'no' is not permitted"):
                open_("no")
    path.write_text(XML.format(daemon="127.0.0.1"))
    with pytest.raises(ConfigError, match=rf"{path}:2: context resolver_unicast_daemon: '127.0.0.1' is not an entry"):
        BlockingContext(Config.load(path, application="desk"))


def without_transport(options: UmOptions) -> UmOptions:
    return UmOptions({key: value for key, value in options.explicit.items() if key != ("source", "transport")})


def test_contexts_without_a_configuration_take_that_of_the_environment(
    tmp_path: Path, tcp_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "default.cfg"
    path.write_text("context use_tls maybe\n")
    monkeypatch.setenv("LBM_DEFAULT_CONFIG_FILE", str(path))
    for make in (BlockingContext, Context):
        with pytest.raises(ConfigError, match=rf"{path}:1: context use_tls"):
            make()
    BlockingContext(tcp_config).close()  # a configuration that the program made is all there is


def test_a_setting_of_an_object_is_of_its_own_scope_first_and_else_of_the_context() -> None:
    made = object_options("receiver", {"transport_lbtru_port_low": 15000, "transport_lbtrm_datagram_max_size": 1000})
    assert dict(made.explicit) == {
        ("receiver", "transport_lbtru_port_low"): 15000,  # there is one of the context, too
        ("context", "transport_lbtrm_datagram_max_size"): 1000,
    }
    with pytest.raises(ConfigError, match=r"^receiver no_such_option: unknown UM option"):
        object_options("receiver", {"no_such_option": 1})
    with pytest.raises(ConfigError, match="context use_tls: it protects all connections"):
        object_options("receiver", {"use_tls": 1})
