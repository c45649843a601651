"""Readers of the real forms: logs, kernel logs, dumps, scheduler text. Each returns facts and judges nothing."""
