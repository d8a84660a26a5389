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
        title: str,
        width: int,
        height: int,
        margin: int,
        y_title: str,
        x_labels: Sequence[dict[str, object]],
        xrange: tuple[float, float],
        range: tuple[float, float],  # noqa: A002  the name in the package
        value_formatter: Callable[[float], str],
        max_scale: int,
        no_data_text: str,
        show_dots: bool,
        allow_interruptions: bool,
        legend_at_bottom: bool,
        legend_at_bottom_columns: int,
        truncate_legend: int,
    ) -> None: ...
    def add(self, title: str, values: Iterable[tuple[float, float | None]]) -> XY: ...
    def render_tree(self) -> etree._Element: ...
