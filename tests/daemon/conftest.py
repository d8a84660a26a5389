"""Fixtures of this folder."""

from tests.rigs.dro_run import start as start
