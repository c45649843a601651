"""``python -m ddaudit``: the same as the ``ddaudit`` script."""

from __future__ import annotations

from ddaudit.cli.main import run

if __name__ == "__main__":
    run()
