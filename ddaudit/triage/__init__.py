"""Reads what a broken job left behind and reasons out who and what broke it. Never imports torch."""
