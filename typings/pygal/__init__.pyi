"""The part of pygal that this project uses; the package brings no types."""

from collections.abc import Callable, Iterable, Sequence

from lxml import etree
from pygal.style import Style

class PluginImportFixer: ...

class XY:
    uuid: str
    def __init__(
        self,
        *,
        style: Style,
        css: Sequence[str],
        js: Sequence[str],
        title: str | None = None,
        width: int,
        height: int,
        margin: int,
        y_title: str | None,
        x_labels: Sequence[int] | Sequence[dict[str, object]] | None = None,
        x_label_rotation: int = 0,
        xrange: tuple[float, float] | None = None,
        range: tuple[float, float] | None = None,  # noqa: A002  the name in the package
        y_labels: Sequence[float] | None = None,
        order_min: int | None = None,
        value_formatter: Callable[[float], str],
        x_value_formatter: Callable[[float], str] | None = None,
        max_scale: int,
        no_data_text: str,
        show_dots: bool = True,
        allow_interruptions: bool = False,
        legend_at_bottom: bool,
        legend_at_bottom_columns: int,
        truncate_legend: int,
        truncate_label: int = 0,
    ) -> None: ...
    def add(self, title: str, values: Iterable[tuple[float, float | None]]) -> XY: ...
    def render_tree(self) -> etree._Element: ...

class HorizontalBar:
    uuid: str
    def __init__(
        self,
        *,
        style: Style,
        css: Sequence[str],
        js: Sequence[str],
        width: int,
        height: int,
        margin: int,
        x_title: str,
        x_labels: Sequence[str],
        value_formatter: Callable[[float], str],
        max_scale: int,
        no_data_text: str,
        show_legend: bool,
        truncate_label: int,
    ) -> None: ...
    def add(self, title: str, values: Iterable[float]) -> HorizontalBar: ...
    def render_tree(self) -> etree._Element: ...
