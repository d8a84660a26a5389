"""UM options by context and by topic in a working DRO: which transport and which numbers a proxy gets."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dro.config.dro_xml.unsupported import unsupported
from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from dro.metrics.slots import Slot
from dro.transport.session import SenderTransport
from dro.um.fragment.context import FragmentContext
from dro.wire.source_string import LbtrmAddress, TcpAddress
from portals.decisions.messages import PATTERN_PCRE
from tests.fakes.um_contexts import Stepper
from tests.rigs.one_process import OneProcess, one_process

UM = """<?xml version="1.0" encoding="UTF-8"?>
<um-configuration version="1.0">
  <templates>
    <template name="quick"><options type="source">
      <option name="transport_lbtrm_sm_minimum_interval" default-value="77"/></options></template>
  </templates>
  <applications><application name="SITE"><contexts>
{contexts}
    <context><sources/></context>
  </contexts></application></applications>
</um-configuration>
"""
XML_CONFIG = "<xml-config>{folder}/um.xml</xml-config>"


def um_file(folder: Path, contexts: str) -> str:
    """Write the UM XML file; the element of the daemon that names it."""
    (folder / "um.xml").write_text(UM.format(contexts=contexts))
    return XML_CONFIG.format(folder=folder)


def proxy_receivers(dro: OneProcess, portal: int) -> set[bytes]:
    return {symbol for symbol, _ in dro.portals[portal].core.proxy_receivers}


def options_of_sessions(context: FragmentContext) -> list[UmOptions]:
    """The options for which the context takes sessions from now on, one for each source."""
    used: list[UmOptions] = []
    acquire = context.pools.acquire

    def noted(options: UmOptions, former: int = 0) -> SenderTransport:
        used.append(options)
        return acquire(options, former)

    context.pools.acquire = noted  # type: ignore[method-assign]
    return used


def test_a_proxy_source_has_the_options_of_its_topic(tmp_path: Path, stepper: Stepper) -> None:
    daemon = um_file(
        tmp_path,
        """<context name="out"><sources>
          <topic topicname="bulk">
            <options type="source"><option name="transport" default-value="tcp"/></options></topic>
          <topic pattern="^q" template="quick"/>
        </sources></context>""",
    )
    names = {2: "<source-context-name>out</source-context-name>"}
    with one_process(tmp_path, stepper, 3, daemon=daemon, portal_xml=names) as dro:
        a, b, c = (dro.application(trd) for trd in (1, 2, 3))
        topics = (b"bulk", b"quotes", b"other")
        used = options_of_sessions(dro.portals[2].sending)
        sources = [a.source(topic) for topic in topics]
        for topic in topics:
            b.context.want_topic(topic)
            c.context.want_topic(topic)
        dro.until(lambda: b.topics() == c.topics() == set(topics))
        kinds = {bound.topic: type(bound.address) for bound in b.sink.current}
        assert kinds == {b"bulk": TcpAddress, b"quotes": LbtrmAddress, b"other": LbtrmAddress}
        assert {type(bound.address) for bound in c.sink.current} == {LbtrmAddress}, "the other portal has no such name"
        dro.run(200)
        for source in sources:
            a.send(source, 5)
        dro.until(lambda: all(len(x.heard(topic)) == 5 for x in (b, c) for topic in topics))
        assert sorted(options.get_int("source", "transport_lbtrm_sm_minimum_interval") for options in used) == [
            77, 200, 200
        ]  # fmt: skip


def test_the_two_contexts_have_their_own_options(tmp_path: Path, stepper: Stepper) -> None:
    daemon = um_file(
        tmp_path,
        """<context name="out"><options type="context">
          <option name="transport_lbtrm_data_rate_limit" default-value="123000000"/></options></context>
        <context name="in"><options type="context">
          <option name="transport_lbtrm_data_rate_limit" default-value="456000000"/></options></context>""",
    )
    names = "<source-context-name>out</source-context-name><receiver-context-name>in</receiver-context-name>"
    with one_process(tmp_path, stepper, 2, daemon=daemon, portal_xml={1: names}) as dro:
        rates = [
            context.options.get_int("context", "transport_lbtrm_data_rate_limit")
            for k in (1, 2)
            for context in (dro.portals[k].sending, dro.portals[k].receiving)
        ]
        assert rates == [123_000_000, 456_000_000, 1_000_000_000, 1_000_000_000]
        a, b = dro.application(1), dro.application(2)
        a.source(b"AAA")
        b.context.want_topic(b"AAA")
        dro.until(lambda: b.topics() == {b"AAA"})


def test_a_proxy_receiver_has_the_options_of_its_topic_and_not_behind_a_pattern(
    tmp_path: Path, stepper: Stepper
) -> None:
    option = '<option name="transport_lbtrm_nak_generation_interval" default-value="33000"/>'
    long = f'<options type="receiver">{option}</options>'
    daemon = um_file(
        tmp_path, f'<context name="in"><receivers><topic pattern="^slow">{long}</topic></receivers></context>'
    )
    one_group = {1: "source transport_lbtrm_multicast_address 0.0.0.0\n"}
    names = {1: "<receiver-context-name>in</receiver-context-name>"}
    with one_process(tmp_path, stepper, 2, daemon=daemon, portal_xml=names, um=one_group) as dro:
        a, b = dro.application(1), dro.application(2)
        for topic in (b"slow.a", b"fast.a", b"slow.w"):  # each on a session of its own
            a.source(topic)
        b.context.want_topic(b"slow.a")
        b.context.want_topic(b"fast.a")
        b.context.want_pattern(rb"\.w$", PATTERN_PCRE, lambda topic: topic.endswith(b".w"))
        dro.until(lambda: b.topics() == {b"slow.a", b"fast.a", b"slow.w"})
        generation_ms = {
            bound.topic: bound.transport.generation_ns // 1_000_000 for bound in dro.portals[1].receiving.bound_sources
        }
        assert generation_ms == {b"slow.a": 33_000, b"fast.a": 10_000, b"slow.w": 10_000}


@pytest.mark.parametrize(
    "rules",
    [
        '<sources><topic pattern="^secret" rule="deny"/></sources>',
        '<sources order="allow,deny"><topic pattern="^public" rule="allow"/></sources>',
        """<sources><topic pattern="^secret"><options type="source">
           <option name="transport" default-value="tcp" order="deny,allow"><deny>tcp</deny></option></options></topic>
           </sources>""",
    ],
)
def test_a_source_that_the_options_forbid_is_not_forwarded_there(
    tmp_path: Path, stepper: Stepper, rules: str, caplog: pytest.LogCaptureFixture
) -> None:
    daemon = um_file(tmp_path, f'<context name="out">{rules}</context>')
    names = {2: "<source-context-name>out</source-context-name>"}
    with (
        caplog.at_level(logging.INFO, "portals.decisions.acl_enforcement"),
        one_process(tmp_path, stepper, 3, daemon=daemon, portal_xml=names) as dro,
    ):
        a, b, c = (dro.application(trd) for trd in (1, 2, 3))
        for topic in (b"secret.a", b"public.a"):
            a.source(topic)
            b.context.want_topic(topic)
        b.context.want_pattern(b"^s", PATTERN_PCRE, lambda topic: topic.startswith(b"s"))
        dro.until(lambda: b.topics() == {b"public.a"})
        dro.run(3000)
        assert b.topics() == {b"public.a"}
        assert proxy_receivers(dro, 1) == {b"public.a", b"^s"}
        assert dro.page(2, Slot.TOPICS_NOT_OUT) == 1
        c.context.want_topic(b"secret.a")
        dro.until(lambda: c.topics() == {b"secret.a"})
    told = [record for record in caplog.records if record.message == "topic not let out of the DRO"]
    assert len(told) == 1
    assert str(tmp_path / "um.xml:") in vars(told[0])["at"]


def test_receivers_that_the_options_forbid_are_not_asked_for(tmp_path: Path, stepper: Stepper) -> None:
    daemon = um_file(
        tmp_path,
        """<context name="in">
          <receivers><topic pattern="^secret" rule="deny"/></receivers>
          <wildcard-receivers order="allow,deny"><wildcard-receiver pattern="^s" rule="allow"/></wildcard-receivers>
        </context>""",
    )
    names = {1: "<receiver-context-name>in</receiver-context-name>"}
    with one_process(tmp_path, stepper, 3, daemon=daemon, portal_xml=names) as dro:
        a, b, c = (dro.application(trd) for trd in (1, 2, 3))
        for topic in (b"secret.a", b"public.a"):
            a.source(topic)
            b.context.want_topic(topic)
        c.context.want_pattern(b"a$", PATTERN_PCRE, lambda topic: topic.endswith(b"a"))
        dro.until(lambda: b.topics() == {b"public.a"})
        dro.run(3000)
        assert b.topics() == {b"public.a"}
        assert c.topics() == {b"public.a"}, "its pattern is not permitted; the topic came because TRD 2 wants it"
        assert proxy_receivers(dro, 1) == {b"public.a"}
        assert dro.page(1, Slot.TOPICS_NOT_IN) == 2
        c.context.want_pattern(b"^s", PATTERN_PCRE, lambda topic: topic.startswith(b"s"))
        # rules about receivers do not bind wildcard receivers
        dro.until(lambda: b.topics() == c.topics() == {b"public.a", b"secret.a"})


def test_equal_options_of_many_topics_are_one_object(tmp_path: Path, stepper: Stepper) -> None:
    daemon = um_file(
        tmp_path,
        '<context name="both"><sources template="quick"/><receivers><topic pattern="."/></receivers></context>',
    )
    names = "<source-context-name>both</source-context-name><receiver-context-name>both</receiver-context-name>"
    with one_process(tmp_path, stepper, 2, daemon=daemon, portal_xml={1: names, 2: names}) as dro:
        a, b = dro.application(1), dro.application(2)
        topics = {b"t.%d" % n for n in range(200)}
        used = options_of_sessions(dro.portals[2].sending)
        for topic in sorted(topics):
            a.source(topic)
            b.context.want_topic(topic)
        dro.until(lambda: b.topics() == topics)
        assert (len(used), len({id(options) for options in used})) == (200, 1)
        assert len(set(map(id, dro.portals[1].receiving._objects.by_topic.values()))) == 1


def test_options_by_topic_that_nothing_asks_for_are_told(tmp_path: Path, stepper: Stepper) -> None:
    daemon = um_file(
        tmp_path,
        """<context name="out"><sources><topic topicname="x">
        <options type="source"><option name="ume_late_join" default-value="1"/></options></topic></sources>
        </context>""",
    )
    names = {1: "<source-context-name>out</source-context-name>"}
    with one_process(tmp_path, stepper, 2, daemon=daemon, portal_xml=names) as dro:
        told = [str(limit) for limit in unsupported(dro.config) if not isinstance(limit, ConfigError)]
        (line,) = [text for text in told if "UM options without effect here" in text]
        assert f"source ume_late_join ({tmp_path}/um.xml:" in line


def test_ten_thousand_topics_of_equal_options_keep_one_set(tmp_path: Path, stepper: Stepper) -> None:
    daemon = um_file(
        tmp_path, '<context name="both"><sources template="quick"><topic pattern="^x"/></sources></context>'
    )
    names = "<source-context-name>both</source-context-name>"
    with one_process(tmp_path, stepper, 2, daemon=daemon, portal_xml={1: names}) as dro:
        sending = dro.config.portals[0].sending
        assert len({id(sending.source(f"t.{n}")) for n in range(1000)}) == 1
        assert sending.source("x.1").origins == sending.source("t.1").origins


def test_two_contexts_on_two_channels_are_refused(tmp_path: Path, stepper: Stepper) -> None:
    daemon = um_file(
        tmp_path,
        """<context name="in"><options type="context">
        <option name="resolver_multicast_port" default-value="15999"/></options></context>""",
    )
    names = {1: "<receiver-context-name>in</receiver-context-name>"}
    with one_process(tmp_path, stepper, 2, daemon=daemon, portal_xml=names) as dro:
        (error,) = [limit for limit in unsupported(dro.config) if isinstance(limit, ConfigError)]
        assert error.line == dro.config.portals[0].line
        assert "two topic resolution channels" in str(error)
        assert ":15999" in str(error)


def test_a_transport_that_no_proxy_source_can_use_is_refused_also_for_one_topic(
    tmp_path: Path, stepper: Stepper
) -> None:
    daemon = um_file(
        tmp_path,
        """<context name="out"><sources><topic topicname="bulk">
        <options type="source"><option name="transport" default-value="broker"/></options></topic>
        </sources></context>""",
    )
    names = {1: "<source-context-name>out</source-context-name>"}
    with one_process(tmp_path, stepper, 2, daemon=daemon, portal_xml=names) as dro:
        (error,) = [limit for limit in unsupported(dro.config) if isinstance(limit, ConfigError)]
        assert str(error).startswith(f"{tmp_path}/um.xml:")
        assert ": source transport: broker is not supported yet" in str(error)
