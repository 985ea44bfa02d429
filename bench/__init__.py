"""Measure an OpenAI-compatible mock server from this machine: `python -m bench --help`.

Standard library only; loopback only; every load is bounded in time. `__main__` is the command line, `measures` the
tests, `client` the load generator (a process of its own), `floor` a server of canned bytes to compare with, `guard`
the ratios that continuous integration holds us to.
"""
