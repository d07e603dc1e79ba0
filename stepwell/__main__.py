"""`python -m stepwell` is `stepwell`."""

from stepwell.cli import app

app()
