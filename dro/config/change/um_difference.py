"""Differences between the UM options of a portal in two configurations: by effective value, not by text.

Two sets of options are the same when every option that a portal uses has the same value, wherever it is set: an
explicit default, another template or another file make no difference. Options by topic are compared as lists of steps,
each with its condition on the topic; steps for different exact names may be in any order.

Called by the comparison of whole configurations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dro.config.change.reload_class import ReloadClass, um_reload_class
from dro.config.um.interfaces import ANY
from dro.config.um.layers import CONTEXT, RECEIVER, SOURCE, WILDCARD_RECEIVER, ContextOptions, PlainLayer
from dro.config.um.options import OptionKey, Parsed, UmOptions, option_table
from dro.config.um.rules import Kind, Value
from dro.config.um.xml_document import Setting

HIDDEN: Final = "(not shown)"
_DEFAULT_INTERFACE: Final = (CONTEXT, "default_interface")
SENDING: Final = "sending context"
RECEIVING: Final = "receiving context"


@dataclass(frozen=True, slots=True)
class UmChange:
    """One option, or the order of steps, that comes to something else. `where` is empty for the whole portal."""

    where: str
    subject: str
    old: str | None  # None: there is no such step
    new: str | None
    origin: str
    was: str
    has_effect: bool


def um_text(key: OptionKey, value: Value) -> str:
    """A value as it may be shown."""
    if key[1].endswith("_password"):
        return HIDDEN if value else ""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def option_changes(old: UmOptions, new: UmOptions, where: str = "") -> Iterator[UmChange]:
    """The options that differ, in the order of their names; convenience options count by what they stand for."""
    if old.explicit == new.explicit:
        return
    for key in sorted({*old.explicit, *new.explicit}):
        option = option_table()[key]
        before, after = _effective(old, key), _effective(new, key)
        if before != after and not option.sets_also:
            shown = (um_text(key, before), um_text(key, after))
            origins = (new.origin(key), old.origin(key))
            yield UmChange(where, " ".join(key), *shown, *origins, um_reload_class(option) is ReloadClass.PORTAL)


def _effective(options: UmOptions, key: OptionKey) -> Value:
    """Return what whoever asks for an option gets: an interface that is not set is that of the context."""
    if option_table()[key].rule.kind is Kind.INTERFACE:
        return options.value(*key) or ANY if key == _DEFAULT_INTERFACE else options.get_interface(*key)
    return options.value(*key)


@dataclass(frozen=True, slots=True)
class _Step:
    """Settings for the topics that a condition names; without a condition, for all."""

    condition: str
    is_exact: bool
    parsed: tuple[Parsed, ...] = field(compare=False)
    settings: tuple[tuple[OptionKey, tuple[Value, ...]], ...]
    rules: tuple[tuple[OptionKey, bool, frozenset[Value], frozenset[Value]], ...]
    permission: str  # allow or deny of a condition, or the order of a list

    @property
    def is_idle(self) -> bool:
        return not self.settings and not self.rules and not self.permission


def _made(settings: Iterable[Parsed | Setting], scope: str) -> tuple[tuple[OptionKey, tuple[Value, ...]], ...]:
    """Find what settings come to for one scope: the last value, of lists all that was added."""
    made: dict[OptionKey, tuple[Value, ...]] = {}
    for setting in settings:
        option, value = setting.option, setting.value
        if value is None or option.scope not in (CONTEXT, scope) or um_reload_class(option) is ReloadClass.NONE:
            continue
        for key in option.sets_also or (option.key,):
            made[key] = (*made.get(key, ()), value) if option.rule.kind is Kind.LIST else (value,)
    return tuple(sorted(made.items()))


def _ruled(
    settings: Iterable[Setting], scope: str
) -> tuple[tuple[OptionKey, bool, frozenset[Value], frozenset[Value]], ...]:
    rules = {
        s.option.key: (s.option.key, s.allow_first, frozenset(s.allow), frozenset(s.deny))
        for s in settings
        if s.has_rules and s.option.scope in (CONTEXT, scope)
    }
    return tuple(rules[key] for key in sorted(rules))


def _steps(options: ContextOptions, scope: str) -> list[_Step]:
    """List the steps in which the options of an object of that scope come about, layer by layer."""
    found: list[_Step] = []
    for layer in options.layers:
        if isinstance(layer, PlainLayer):
            found.append(_Step("", False, layer.settings, _made(layer.settings, scope), (), ""))
            continue
        for part in layer.parts(scope):
            matcher = part.matcher
            condition, is_exact, permission = "", False, "allow, deny" if part.allow_first else ""
            if matcher is not None:
                is_exact = matcher.name is not None
                condition = f"name {matcher.name}" if is_exact else f"pattern {matcher.pattern} {matcher.pattern_type}"
                permission = "allow" if matcher.allow else "deny"
                if matcher.allow and not part.allow_first and not part.has_deny:
                    permission = ""
            parsed = tuple(Parsed(s.option, s.value, s.origin) for s in part.settings if s.value is not None)
            ruled = _ruled(part.settings, scope)
            found.append(_Step(condition, is_exact, parsed, _made(parsed, scope), ruled, permission))
    return found


def _split(options: ContextOptions, scope: str) -> tuple[UmOptions, tuple[_Step, ...]]:
    """Return the options of all steps before the first with a condition, and the steps from there on.

    Steps that do nothing are left out, and neighbours that exclude each other are sorted.
    """
    found = _steps(options, scope)
    first = next((at for at, step in enumerate(found) if step.condition or step.permission or step.rules), len(found))
    plain = options.base
    for step in found[:first]:
        plain = plain.with_parsed(step.parsed)
    made: list[_Step] = []
    run: list[_Step] = []
    for step in (step for step in found[first:] if not step.is_idle):
        if step.is_exact:
            run.append(step)
        else:
            made += [*sorted(run, key=lambda one: one.condition), step]
            run = []
    return plain, (*made, *sorted(run, key=lambda one: one.condition))


def topic_changes(old: ContextOptions, new: ContextOptions, scope: str, where: str) -> Iterator[UmChange]:
    """Yield where the objects of one scope differ; a difference that is only one of order is told as such."""
    (plain_before, before), (plain_after, after) = _split(old, scope), _split(new, scope)
    for one in option_changes(plain_before, plain_after, where):
        if one.subject.startswith((f"{CONTEXT} ", f"{scope} ")):
            yield one
    if before == after:
        return
    was, now = _by_condition(before), _by_condition(after)
    found = False
    for condition in sorted({*was, *now}):
        for what in sorted({*was.get(condition, {}), *now.get(condition, {})}):
            a, b = was.get(condition, {}).get(what), now.get(condition, {}).get(what)
            if a != b:
                found = True
                yield UmChange(where, f"{condition or 'all'}: {what}", a, b, "", "", True)
    if not found:
        yield UmChange(where, f"{scope} by topic", "order of conditions", "another order", "", "", True)


def _by_condition(found: Iterable[_Step]) -> dict[str, dict[str, str]]:
    made: dict[str, dict[str, str]] = {}
    for step in found:
        at = made.setdefault(step.condition, {})
        for key, values in step.settings:
            at[" ".join(key)] = " ".join(um_text(key, value) for value in values)
        for key, allow_first, allow, deny in step.rules:
            shown = f"allow {_listed(allow)}, deny {_listed(deny)}"
            at[f"rules of {' '.join(key)}"] = shown + (", deny by default" if allow_first else "")
        if step.permission:
            at["permission"] = step.permission
    return made


def _listed(values: Iterable[Value]) -> str:
    return "|".join(sorted(map(str, values))) or "none"


def um_changes(
    old: tuple[ContextOptions, ContextOptions], new: tuple[ContextOptions, ContextOptions]
) -> list[UmChange]:
    """All of a portal: sending and receiving context, and the proxies in them."""
    sides: list[Mapping[tuple[str, str | None, str | None], UmChange]] = []  # by what is told
    for where, before, after in zip((SENDING, RECEIVING), old, new, strict=True):
        found = option_changes(before.context(), after.context(), where)
        sides.append({(one.subject, one.old, one.new): one for one in found})
    sending, receiving = sides
    made = [
        UmChange("", *key, one.origin, one.was, one.has_effect) if key in receiving else one
        for key, one in sending.items()
    ]
    made += [one for key, one in receiving.items() if key not in sending]
    for context, scope, where in ((0, SOURCE, "sources"), (1, RECEIVER, "receivers"), (1, WILDCARD_RECEIVER, "")):
        found = topic_changes(old[context], new[context], scope, where or "wildcard receivers")
        made += [one for one in found if (one.subject, one.old, one.new) not in sides[context]]
    return made
