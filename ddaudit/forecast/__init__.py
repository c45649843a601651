"""Will more devices help, and what becomes the limit? Answered from a job's own measurements. Never imports torch."""

from __future__ import annotations
