"""UM options of two configurations compared by what they come to: files, templates, attributes and topics."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.config.change.difference import differences
from dro.config.change.element_difference import Change
from dro.config.change.reload_class import ReloadClass
from dro.config.change.um_difference import um_changes
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.reading.problems import Problems
from dro.config.um.layers import ContextOptions, PlainLayer, XmlLayer
from dro.config.um.options import DEFAULTS, Parsed, option_table
from dro.config.um.rules import Kind
from dro.config.um.used import MONITORING, used_options
from dro.config.um.xml_document import parse_um_xml
from dro.errors import ConfigError
from tests.fakes.lookup import FakeLookup

DRO = """<tnw-gateway version="1.0"><daemon><name>D</name>{xml_config}</daemon><portals><endpoint><name>A</name>
<domain-id>1</domain-id>{config}{attributes}{names}</endpoint></portals></tnw-gateway>"""
UM = """<um-configuration version="1.0"><templates>{templates}</templates><applications><application{application}>
<contexts><context>{context}</context></contexts></application>{more}</applications></um-configuration>"""
Load = Callable[..., DroConfig]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """A DRO with one endpoint, from the texts of its files; each call writes files of its own."""
    calls = 0

    def made(
        *, plain: str = "", attributes: str = "", context: str = "", templates: str = "", application: str = "",
        more: str = "", names: str = "",
    ) -> DroConfig:  # fmt: skip
        nonlocal calls
        calls += 1
        folder = tmp_path / str(calls)
        folder.mkdir()
        (folder / "a.cfg").write_text(plain)
        um = UM.format(templates=templates, application=application, context=context or "<sources/>", more=more)
        (folder / "um.xml").write_text(um)
        is_xml = bool(context or templates or application or more)
        options = "".join(
            f'<option scope="{s}" name="{n}" value="{v}"/>' for s, n, v in (a.split() for a in attributes.splitlines())
        )
        (folder / "dro.xml").write_text(
            DRO.format(
                xml_config=f"<xml-config>{folder}/um.xml</xml-config>" if is_xml else "",
                config=f"<lbm-config>{folder}/a.cfg</lbm-config>" if plain else "",
                attributes=f"<lbm-attributes>{options}</lbm-attributes>" if options else "",
                names=names,
            )
        )
        return load_dro(str(folder / "dro.xml"), warn=lambda _: None, environ={})

    return made


def told(old: DroConfig, new: DroConfig) -> list[tuple[str, str | None, str | None]]:
    """What a reload would act on."""
    found = [change for change in differences(old, new) if change.reload is not ReloadClass.NONE]
    assert all(change.reload is ReloadClass.PORTAL for change in found)
    assert all(change.portal == "A" for change in found)
    back = [change for change in differences(new, old) if change.reload is not ReloadClass.NONE]
    assert sorted((c.path, str(c.old), str(c.new)) for c in found) == sorted(
        (c.path, str(c.new), str(c.old)) for c in back
    ) or any("order" in (change.old or "") for change in found)
    return [(change.path.removeprefix("endpoint[A]/"), change.old, change.new) for change in found]


def template(name: str, scope: str, **values: object) -> str:
    options = "".join(f'<option name="{key}" default-value="{value}"/>' for key, value in values.items())
    return f'<template name="{name}"><options type="{scope}">{options}</options></template>'


def topic(what: str, scope: str = "source", rule: str = "", **values: object) -> str:
    options = "".join(f'<option name="{key}" default-value="{value}"/>' for key, value in values.items())
    inner = f'<options type="{scope}">{options}</options>' if values else ""
    return f"<topic {what}{rule}>{inner}</topic>"


TTL = ("context resolver_multicast_ttl", "16", "5")


def test_a_value_from_any_layer_is_the_same_value(load: Load) -> None:
    ways = [
        load(plain="context resolver_multicast_ttl 5"),
        load(plain="# a comment\n\ncontext\tRESOLVER_MULTICAST_TTL   5\n"),
        load(attributes="context resolver_multicast_ttl 5"),
        load(plain="context resolver_multicast_ttl 9", attributes="context resolver_multicast_ttl 5"),
        load(context='<options type="context"><option name="resolver_multicast_ttl" default-value="5"/></options>'),
        load(templates=template("t", "context", resolver_multicast_ttl=5), application=' template="t"'),
    ]
    for one in ways:
        assert told(load(), one) == [TTL]
        for other in ways:
            assert told(one, other) == []


def test_the_change_names_the_line_that_did_it(load: Load) -> None:
    old, new = load(plain="context resolver_multicast_ttl 5"), load(plain="\n\ncontext resolver_multicast_ttl 6")
    [file, change] = differences(old, new)
    assert file == Change(
        "endpoint[A]/lbm-config", "A", old.portals[0].lbm_config[0], new.portals[0].lbm_config[0], ReloadClass.NONE,
        f"{new.file}:2", f"{old.file}:2",
    )  # fmt: skip
    assert (change.origin, change.was) == (f"{new.portals[0].lbm_config[0]}:3", f"{old.portals[0].lbm_config[0]}:1")


def test_a_written_default_is_no_difference(load: Load) -> None:
    assert told(load(), load(plain="context resolver_multicast_ttl 16\nsource transport tcp")) == []


def test_every_option_with_a_meaning_is_seen(load: Load) -> None:
    """Each option of the table with another value than its default, where one is easily made."""
    lines = dict[str, str]()
    for option in option_table().values():
        if option.sets_also or option.is_deprecated:
            continue
        match option.rule.kind:
            case Kind.INTEGER:
                low, high = option.rule.ranges[-1]
                choices = [n for n in (low, low + 8, high, low * 2) if n != option.default and low <= n <= high]
                fits = [n for n in choices if not n % option.rule.multiple_of]
                if option.rule.power_of_two or not fits:
                    continue
                value = str(fits[0])
            case Kind.WORD:
                words = [word for word in option.rule.words.values() if word != option.default]
                if not words:
                    continue
                value = words[0]
            case Kind.INTERFACE:
                value = "127.0.0.1"
            case _:
                continue
        lines[f"{option.scope} {option.name}"] = value
    assert len(lines) > 300
    old = load(plain="# nothing")
    new = load(plain="\n".join(f"{subject} {value}" for subject, value in lines.items()))
    changes = {change.path.removeprefix("endpoint[A]/"): change for change in differences(old, new)}
    fixed = {"source transport"}  # what a DRO fixes
    for subject, value in lines.items():
        scope, name = subject.split()
        if subject in fixed:
            continue
        change = changes[subject]
        is_relevant = option_table()[scope, name].relevance == "yes"
        has_meaning = is_relevant and (scope, name) in used_options(in_portals=True).difference(MONITORING)
        assert change.reload is (ReloadClass.PORTAL if has_meaning else ReloadClass.NONE), subject
        assert change.new == value


def test_convenience_options_count_by_what_they_stand_for(load: Load) -> None:
    both = load(plain="context resolver_multicast_address 239.1.1.1")
    single = load(
        plain="context resolver_multicast_incoming_address 239.1.1.1\n"
        "context resolver_multicast_outgoing_address 239.1.1.1"
    )
    assert told(both, single) == []
    assert [path for path, _, _ in told(load(), both)] == [
        "context resolver_multicast_incoming_address", "context resolver_multicast_outgoing_address",
    ]  # fmt: skip


def test_an_interface_that_is_not_set_is_that_of_the_context(load: Load) -> None:
    default = "context default_interface 127.0.0.1\n"
    written = load(plain=default + "context resolver_multicast_interface 127.0.0.1")
    assert told(load(plain=default), written) == []
    assert [path for path, _, _ in told(load(), load(plain=default))] == ["context default_interface"]
    any_one = load(plain=default + "context resolver_multicast_interface 0.0.0.0")
    assert told(written, any_one) == [("context resolver_multicast_interface", "127.0.0.1", "0.0.0.0")]


def test_passwords_are_never_shown(load: Load) -> None:
    old = load(plain="context tls_certificate_key_password geheim")
    new = load(plain="context tls_certificate_key_password secret")
    shown = repr(differences(old, new))
    assert "geheim" not in shown
    assert "secret" not in shown
    assert "tls_certificate_key_password" in shown, "that it changed is told"


def test_the_two_contexts_are_told_apart(load: Load) -> None:
    names = "<source-context-name>out</source-context-name>"

    def made(owner: str, ttl: int) -> DroConfig:
        option = f'<options type="context"><option name="resolver_multicast_ttl" default-value="{ttl}"/></options>'
        contexts = f'<contexts><context name="out">{option}</context><context><sources/></context></contexts>'
        application = ' name="first"'
        return load(names=names, application=application, more=f'<application name="{owner}">{contexts}</application>')

    assert told(made("D", 3), made("D", 4)) == [("sending context: context resolver_multicast_ttl", "3", "4")]


def test_options_that_nobody_uses_here_are_no_reason_to_restart(load: Load) -> None:
    other = template("unused", "context", resolver_multicast_ttl=7)
    elsewhere = '<application name="other"><contexts><context><sources/></context></contexts></application>'
    ours = ' name="D"'
    one = load(application=ours, context="<sources/>")
    assert told(one, load(application=ours, templates=other, context="<sources/>", more=elsewhere)) == []


def sources(*topics: str, order: str = "") -> str:
    return f"<sources{order}>{''.join(topics)}</sources>"


def test_options_by_topic(load: Load) -> None:
    one = load(
        context=sources(topic('topicname="x"', transport="lbtrm"), topic('pattern="^y"', transport_tcp_reuseaddr=1))
    )
    assert told(one, load(context=sources(topic('topicname="x"', transport="lbtrm"), topic('pattern="^y"')))) == [
        ("sources: pattern ^y pcre: source transport_tcp_reuseaddr", "1", None)
    ]
    changed = load(
        context=sources(topic('topicname="x"', transport="lbtru"), topic('pattern="^y"', transport_tcp_reuseaddr=1))
    )
    assert told(one, changed) == [("sources: name x: source transport", "lbtrm", "lbtru")]
    more = load(
        context=sources(
            topic('topicname="x"', transport="lbtrm"), topic('topicname="z"', transport_tcp_reuseaddr=1),
            topic('pattern="^y"', transport_tcp_reuseaddr=1),
        )
    )  # fmt: skip
    assert told(one, more) == [("sources: name z: source transport_tcp_reuseaddr", None, "1")]


def test_a_template_of_a_topic_is_what_it_says(load: Load) -> None:
    t = template("t", "source", transport="lbtrm")
    inline = load(context=sources(topic('topicname="x"', transport="lbtrm")))
    named = load(templates=t, context='<sources><topic topicname="x" template="t"/></sources>')
    assert told(inline, named) == []


def test_names_may_stand_in_any_order_and_patterns_may_not(load: Load) -> None:
    x, y = topic('topicname="x"', transport="lbtrm"), topic('topicname="y"', transport="lbtru")
    assert told(load(context=sources(x, y)), load(context=sources(y, x))) == []
    p, q = topic('pattern="^a"', transport="lbtrm"), topic('pattern="^ab"', transport="lbtru")
    changed = told(load(context=sources(p, q)), load(context=sources(q, p)))
    assert changed == [("sources: source by topic", "order of conditions", "another order")]
    assert told(load(context=sources(x, p)), load(context=sources(p, x)))


def test_options_of_all_sources_are_those_of_the_list_and_the_context(load: Load) -> None:
    t = template("t", "source", transport_tcp_reuseaddr=1)
    by_list = load(templates=t, context='<sources template="t"/>')
    assert told(load(context="<sources/>"), by_list) == [("sources: source transport_tcp_reuseaddr", "0", "1")]
    by_context = load(
        context='<options type="source"><option name="transport_tcp_reuseaddr" default-value="1"/></options><sources/>'
    )
    assert [path for path, _, _ in told(load(context="<sources/>"), by_context)] == ["source transport_tcp_reuseaddr"]
    assert told(by_list, load(plain="source transport_tcp_reuseaddr 1")) != [], (
        "the sending context itself knows it now"
    )


def test_what_may_not_be_is_a_difference(load: Load) -> None:
    plain = load(context=sources(topic('topicname="x"')))
    denied = load(context=sources(topic('topicname="x"', rule=' rule="deny"')))
    assert told(plain, denied) == [("sources: name x: permission", None, "deny")]
    only = load(context=sources(topic('topicname="x"', rule=' rule="allow"'), order=' order="allow,deny"'))
    assert {path for path, _, _ in told(plain, only)} == {"sources: all: permission", "sources: name x: permission"}
    assert told(plain, load(context=sources(topic('topicname="x"', rule=' rule="allow"')))) == []


def test_what_is_permitted_again_is_a_difference(load: Load) -> None:
    denied, again = topic('pattern="^a"', rule=' rule="deny"'), topic('topicname="ab"', rule=' rule="allow"')
    assert told(load(context=sources(denied)), load(context=sources(denied, again))) == [
        ("sources: name ab: permission", None, "allow")
    ]


def test_rules_of_values_are_a_difference(load: Load) -> None:
    rule = '<options type="source"><option name="transport" default-value="tcp"><deny>{}</deny></option></options>'
    lists = [load(context=sources(f'<topic topicname="x">{rule.format(t)}</topic>')) for t in ("lbtrm", "lbtru")]
    [(path, old, new)] = told(*lists)
    assert path == "sources: name x: rules of source transport"
    assert (old, new) == ("allow none, deny lbtrm", "allow none, deny lbtru")


def test_receivers_and_wildcard_receivers_by_topic(load: Load) -> None:
    def made(value: int) -> DroConfig:
        receiver = topic('topicname="x"', "receiver", transport_lbtrm_send_naks=value)
        wildcard = (f'<wildcard-receivers><wildcard-receiver pattern="^a"><options type="wildcard-receiver"><option '
                    f'name="resolver_no_source_linger_timeout" default-value="{value}"/></options></wildcard-receiver>'
                    "</wildcard-receivers>")  # fmt: skip
        return load(context=f"<receivers>{receiver}</receivers>{wildcard}")

    assert told(made(0), made(1)) == [
        ("receivers: name x: receiver transport_lbtrm_send_naks", "0", "1"),
        (
            "wildcard receivers: pattern ^a pcre: wildcard_receiver resolver_no_source_linger_timeout", "0", "1",
        ),
    ]  # fmt: skip


# --- any two files -------------------------------------------------------------------------------------------------

NAMES = ("a", "ab", "b", "bc", "c", "")
OPTIONS = {
    "source": (("transport", ("tcp", "lbtrm", "lbtru")), ("transport_tcp_reuseaddr", ("0", "1"))),
    "receiver": (("transport_lbtrm_send_naks", ("0", "1")),),
    "context": (("resolver_multicast_ttl", ("16", "5")), ("resolver_unicast_daemon", ("127.0.0.1:1", "127.0.0.1:2"))),
}


@st.composite
def options(draw: st.DrawFn, *scopes: str) -> str:
    made = ""
    for scope in scopes:
        found = ""
        for name, values in OPTIONS[scope]:
            if draw(st.integers(0, 2)) == 0:
                rule = draw(st.sampled_from(["", "", "", f"<deny>{values[-1]}</deny>"]))
                value = draw(st.sampled_from(values if not rule else values[:1]))
                found += f'<option name="{name}" default-value="{value}">{rule}</option>'
        if found:
            made += f'<options type="{scope}">{found}</options>'
    return made


@st.composite
def um_files(draw: st.DrawFn) -> bytes:
    """A UM XML file for one nameless context, with topics that overlap."""
    some = '<options type="source"><option name="transport_tcp_reuseaddr" default-value="0"/></options>'
    templates = "".join(
        f'<template name="{name}">{draw(options("source", "receiver", "context")) or some}</template>' for name in "tu"
    )
    template = st.sampled_from(["", "", ' template="t"', ' template="t,u"', ' template="u"'])

    def matcher() -> str:
        what = draw(
            st.sampled_from(['topicname="a"', 'topicname="ab"', 'topicname="b"', 'pattern="^a"', 'pattern="b"'])
        )
        rule = draw(st.sampled_from(["", "", ' rule="allow"', ' rule="deny"']))
        return f"<topic {what}{rule}{draw(template)}>{draw(options(scope))}</topic>"

    lists = ""
    for scope in ("source", "receiver"):
        order = draw(st.sampled_from(["", "", ' order="allow,deny"']))
        matchers = "".join(matcher() for _ in range(draw(st.integers(0, 3))))
        lists += f"<{scope}s{order}{draw(template)}>{matchers}</{scope}s>"
    context = f"<context{draw(template)}>{draw(options('context', 'source', 'receiver'))}{lists}</context>"
    return (
        f'<um-configuration version="1.0"><templates>{templates}</templates><applications>'
        f"<application{draw(template)}><contexts{draw(template)}>{context}</contexts></application></applications>"
        "</um-configuration>"
    ).encode()


def layered(raw: bytes, plain: tuple[Parsed, ...]) -> ContextOptions:
    document = parse_um_xml(raw, "u.xml", Problems(lambda _: None), FakeLookup())
    return ContextOptions(DEFAULTS, (PlainLayer(plain), XmlLayer(document, document.applications[0], "")))


def answers(options: ContextOptions) -> list[object]:
    """What the program sees of options: each value with a meaning for each object, or that it may not be."""
    context = options.context()
    found: list[object] = [context.value(scope, name) for scope in OPTIONS for name, _ in OPTIONS[scope]]
    for ask in (options.source, options.receiver):
        for name in NAMES:
            try:
                made = ask(name)
            except ConfigError:
                found.append(None)
                continue
            scope = "source" if ask == options.source else "receiver"
            found.append([made.value(s, n) for s in ("context", scope) for n, _ in OPTIONS[s]])
    return found


TTL_9 = (
    Parsed(option_table()["context", "resolver_multicast_ttl"], 9),
    Parsed(option_table()["source", "transport"], "lbtrm"),
)


@settings(max_examples=int(os.environ.get("DRO_EXAMPLES", "60")), deadline=None)
@given(um_files(), um_files(), st.sampled_from([(), TTL_9]), st.sampled_from([(), TTL_9]))
def test_no_difference_is_missed(
    one: bytes, other: bytes, plain: tuple[Parsed, ...], other_plain: tuple[Parsed, ...]
) -> None:
    a, b = layered(one, plain), layered(other, other_plain)
    try:
        a.context(), b.context()
    except ConfigError:
        return  # such a file is refused
    assert not um_changes((a, a), (layered(one, plain),) * 2)
    if answers(a) != answers(b):
        assert um_changes((a, a), (b, b))
