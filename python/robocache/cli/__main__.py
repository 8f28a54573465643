"""`python -m robocache.cli`."""

from robocache.cli import main

main()
