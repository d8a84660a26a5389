"""The part of pygal.style that this project uses; the package brings no types."""

class Style:
    def __init__(
        self,
        *,
        font_family: str,
        title_font_size: int = 16,
        label_font_size: int,
        major_label_font_size: int,
        legend_font_size: int,
        no_data_font_size: int,
    ) -> None: ...
