"""A store of persistent messages, and a source and a receiver that use it: scripted, for tests of what a DRO passes.

No product: each party is a table of what it does for a control message, and a step that is called again and again. They
speak the published blocks; what these leave open is decided by the simplest rule. Requests may get lost (`lose`), and
are repeated. Source: wire notes LBMC, 5.5 and 7. Guesses: `docs/decisions.md`, "persistence in tests".

`python -m tests.rigs.store store|source|receiver CONFIG ...` runs one of them; see `_parse`.
"""
