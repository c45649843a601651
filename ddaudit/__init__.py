"""ddaudit: runbook-driven diagnostics and checkpoint audits for distributed PyTorch training."""

from __future__ import annotations

__version__ = "0.1.0"
