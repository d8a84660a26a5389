"""What pyproject.toml cannot say: the shell completion that `make completion` has made goes into the wheel."""

from pathlib import Path

from setuptools import setup

MADE = Path(__file__).parent / "deploy" / "completion"
FOLDERS = {
    "bash": "share/bash-completion/completions",
    "zsh": "share/zsh/site-functions",
    "fish": "share/fish/vendor_completions.d",
}


def completion() -> list[tuple[str, list[str]]]:
    """By folder below the prefix; empty before `make completion`."""
    found = {shell: sorted((MADE / shell).glob("*")) for shell in FOLDERS}
    return [
        (FOLDERS[shell], [str(path.relative_to(MADE.parents[1])) for path in paths])
        for shell, paths in found.items()
        if paths
    ]


if __name__ == "__main__":
    setup(data_files=completion())
